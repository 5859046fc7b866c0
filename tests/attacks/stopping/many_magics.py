"""A hundred lines of magics, and a thousand of text that is no Python, are parsed anew for each that is taken out.
What reads a cell is linear in its length.
"""

EXERCISE = "scale_add"
SPEED = False

# The cell:
%time0 ? x = 0
%time1 ? x = 1
%time2 ? x = 2
%time3 ? x = 3
%time4 ? x = 4
%time5 ? x = 5
%time6 ? x = 6
%time7 ? x = 7
%time8 ? x = 8
%time9 ? x = 9
%time10 ? x = 10
%time11 ? x = 11
%time12 ? x = 12
%time13 ? x = 13
%time14 ? x = 14
%time15 ? x = 15
%time16 ? x = 16
%time17 ? x = 17
%time18 ? x = 18
%time19 ? x = 19
%time20 ? x = 20
%time21 ? x = 21
%time22 ? x = 22
%time23 ? x = 23
%time24 ? x = 24
%time25 ? x = 25
%time26 ? x = 26
%time27 ? x = 27
%time28 ? x = 28
%time29 ? x = 29
%time30 ? x = 30
%time31 ? x = 31
%time32 ? x = 32
%time33 ? x = 33
%time34 ? x = 34
%time35 ? x = 35
%time36 ? x = 36
%time37 ? x = 37
%time38 ? x = 38
%time39 ? x = 39
%time40 ? x = 40
%time41 ? x = 41
%time42 ? x = 42
%time43 ? x = 43
%time44 ? x = 44
%time45 ? x = 45
%time46 ? x = 46
%time47 ? x = 47
%time48 ? x = 48
%time49 ? x = 49
%time50 ? x = 50
%time51 ? x = 51
%time52 ? x = 52
%time53 ? x = 53
%time54 ? x = 54
%time55 ? x = 55
%time56 ? x = 56
%time57 ? x = 57
%time58 ? x = 58
%time59 ? x = 59
%time60 ? x = 60
%time61 ? x = 61
%time62 ? x = 62
%time63 ? x = 63
%time64 ? x = 64
%time65 ? x = 65
%time66 ? x = 66
%time67 ? x = 67
%time68 ? x = 68
%time69 ? x = 69
%time70 ? x = 70
%time71 ? x = 71
%time72 ? x = 72
%time73 ? x = 73
%time74 ? x = 74
%time75 ? x = 75
%time76 ? x = 76
%time77 ? x = 77
%time78 ? x = 78
%time79 ? x = 79
%time80 ? x = 80
%time81 ? x = 81
%time82 ? x = 82
%time83 ? x = 83
%time84 ? x = 84
%time85 ? x = 85
%time86 ? x = 86
%time87 ? x = 87
%time88 ? x = 88
%time89 ? x = 89
%time90 ? x = 90
%time91 ? x = 91
%time92 ? x = 92
%time93 ? x = 93
%time94 ? x = 94
%time95 ? x = 95
%time96 ? x = 96
%time97 ? x = 97
%time98 ? x = 98
%time99 ? x = 99
%time100 ? x = 100
%time101 ? x = 101
%time102 ? x = 102
%time103 ? x = 103
%time104 ? x = 104
%time105 ? x = 105
%time106 ? x = 106
%time107 ? x = 107
%time108 ? x = 108
%time109 ? x = 109
%time110 ? x = 110
%time111 ? x = 111
%time112 ? x = 112
%time113 ? x = 113
%time114 ? x = 114
%time115 ? x = 115
%time116 ? x = 116
%time117 ? x = 117
%time118 ? x = 118
%time119 ? x = 119
%time120 ? x = 120
%time121 ? x = 121
%time122 ? x = 122
%time123 ? x = 123
%time124 ? x = 124
%time125 ? x = 125
%time126 ? x = 126
%time127 ? x = 127
%time128 ? x = 128
%time129 ? x = 129
%time130 ? x = 130
%time131 ? x = 131
%time132 ? x = 132
%time133 ? x = 133
%time134 ? x = 134
%time135 ? x = 135
%time136 ? x = 136
%time137 ? x = 137
%time138 ? x = 138
%time139 ? x = 139
%time140 ? x = 140
%time141 ? x = 141
%time142 ? x = 142
%time143 ? x = 143
%time144 ? x = 144
%time145 ? x = 145
%time146 ? x = 146
%time147 ? x = 147
%time148 ? x = 148
%time149 ? x = 149
%time150 ? x = 150
%time151 ? x = 151
%time152 ? x = 152
%time153 ? x = 153
%time154 ? x = 154
%time155 ? x = 155
%time156 ? x = 156
%time157 ? x = 157
%time158 ? x = 158
%time159 ? x = 159
%time160 ? x = 160
%time161 ? x = 161
%time162 ? x = 162
%time163 ? x = 163
%time164 ? x = 164
%time165 ? x = 165
%time166 ? x = 166
%time167 ? x = 167
%time168 ? x = 168
%time169 ? x = 169
%time170 ? x = 170
%time171 ? x = 171
%time172 ? x = 172
%time173 ? x = 173
%time174 ? x = 174
%time175 ? x = 175
%time176 ? x = 176
%time177 ? x = 177
%time178 ? x = 178
%time179 ? x = 179
%time180 ? x = 180
%time181 ? x = 181
%time182 ? x = 182
%time183 ? x = 183
%time184 ? x = 184
%time185 ? x = 185
%time186 ? x = 186
%time187 ? x = 187
%time188 ? x = 188
%time189 ? x = 189
%time190 ? x = 190
%time191 ? x = 191
%time192 ? x = 192
%time193 ? x = 193
%time194 ? x = 194
%time195 ? x = 195
%time196 ? x = 196
%time197 ? x = 197
%time198 ? x = 198
%time199 ? x = 199
%time200 ? x = 200
%time201 ? x = 201
%time202 ? x = 202
%time203 ? x = 203
%time204 ? x = 204
%time205 ? x = 205
%time206 ? x = 206
%time207 ? x = 207
%time208 ? x = 208
%time209 ? x = 209
%time210 ? x = 210
%time211 ? x = 211
%time212 ? x = 212
%time213 ? x = 213
%time214 ? x = 214
%time215 ? x = 215
%time216 ? x = 216
%time217 ? x = 217
%time218 ? x = 218
%time219 ? x = 219
%time220 ? x = 220
%time221 ? x = 221
%time222 ? x = 222
%time223 ? x = 223
%time224 ? x = 224
%time225 ? x = 225
%time226 ? x = 226
%time227 ? x = 227
%time228 ? x = 228
%time229 ? x = 229
%time230 ? x = 230
%time231 ? x = 231
%time232 ? x = 232
%time233 ? x = 233
%time234 ? x = 234
%time235 ? x = 235
%time236 ? x = 236
%time237 ? x = 237
%time238 ? x = 238
%time239 ? x = 239
%time240 ? x = 240
%time241 ? x = 241
%time242 ? x = 242
%time243 ? x = 243
%time244 ? x = 244
%time245 ? x = 245
%time246 ? x = 246
%time247 ? x = 247
%time248 ? x = 248
%time249 ? x = 249
%time250 ? x = 250
%time251 ? x = 251
%time252 ? x = 252
%time253 ? x = 253
%time254 ? x = 254
%time255 ? x = 255
%time256 ? x = 256
%time257 ? x = 257
%time258 ? x = 258
%time259 ? x = 259
%time260 ? x = 260
%time261 ? x = 261
%time262 ? x = 262
%time263 ? x = 263
%time264 ? x = 264
%time265 ? x = 265
%time266 ? x = 266
%time267 ? x = 267
%time268 ? x = 268
%time269 ? x = 269
%time270 ? x = 270
%time271 ? x = 271
%time272 ? x = 272
%time273 ? x = 273
%time274 ? x = 274
%time275 ? x = 275
%time276 ? x = 276
%time277 ? x = 277
%time278 ? x = 278
%time279 ? x = 279
%time280 ? x = 280
%time281 ? x = 281
%time282 ? x = 282
%time283 ? x = 283
%time284 ? x = 284
%time285 ? x = 285
%time286 ? x = 286
%time287 ? x = 287
%time288 ? x = 288
%time289 ? x = 289
%time290 ? x = 290
%time291 ? x = 291
%time292 ? x = 292
%time293 ? x = 293
%time294 ? x = 294
%time295 ? x = 295
%time296 ? x = 296
%time297 ? x = 297
%time298 ? x = 298
%time299 ? x = 299


@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, alpha, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < n)
    y = tl.load(y_ptr + offsets, mask=offsets < n)
    tl.store(out_ptr + offsets, alpha * x + y, mask=offsets < n)


def scale_add(x, y, alpha):
    out = torch.empty_like(x)
    add_kernel[(triton.cdiv(x.numel(), 1024),)](x, y, out, alpha, x.numel(), BLOCK=1024)
    return out

this is no python

this is no python

this is no python

this is no python

this is no python

this is no python

this is no python

this is no python

this is no python

this is no python

this is no python

this is no python

this is no python

this is no python

this is no python

this is no python

this is no python

this is no python

this is no python

this is no python
