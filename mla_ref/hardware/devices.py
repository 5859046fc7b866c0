"""The table of accelerators: ceilings, each with its source, what a multiprocessor holds, and names.

To add a GPU is to add one entry to :data:`DEVICES`. What ``mla-course bench --calibrate`` measured of one is a file:
the environment variable ``MLA_HARDWARE`` names it, and its ceilings take the place of those measured for this course.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

HARDWARE = "MLA_HARDWARE"
CEILINGS = ("measured_dram_bandwidth", "measured_flops")


class HardwareError(ValueError):
    """The file of a calibrated GPU cannot be taken: a sentence."""


@dataclass(frozen=True)
class Multiprocessor:
    """What a multiprocessor holds and how fast it ticks: from the vendor's tuning guides and data sheets.

    Parameters
    ----------
    warps, blocks
        The most that it holds at once.
    shared_bytes
        Shared memory of all its blocks.
    l1_bytes
        First-level cache, shared memory included where the two are one.
    clock
        Hz, boosted.
    registers
        Of 32 bits.
    warp_size
        Threads a warp.
    reserved_bytes
        Shared memory that the system keeps of each block: none before sm_80.
    matrix_units
        Whether Triton has ``tl.dot`` run on them.
    """

    warps: int
    blocks: int
    shared_bytes: int
    l1_bytes: int
    clock: float
    registers: int = 65536
    warp_size: int = 32
    reserved_bytes: int = 1024
    matrix_units: bool = True


@dataclass(frozen=True, eq=False)
class Device:
    """One accelerator.

    Parameters
    ----------
    name
        As printed.
    target
        What Triton compiles for, backend, architecture and threads a warp: ``("cuda", 90, 32)``; None where it has no
        such target.
    dram_bandwidth
        bytes/s.
    flops
        Dense FLOP/s by dtype name, matrix units with float32 accumulation where they exist, never the sparse
        figure.
    dram_bytes
        Memory size.
    sms
        Streaming multiprocessors, compute units or cores.
    shared_bytes
        Most on-chip scratch memory one block can have.
    l2_bytes, l2_bandwidth
        Size in bytes and bytes/s of the last cache before DRAM.
    source
        Where each figure comes from, by field name; ``""`` covers the fields not named.
    measured_dram_bandwidth, measured_flops
        What a plain copy (bytes read plus bytes written, per second) and a plain matrix product reach.
    driver_names
        What its driver calls it, as ``torch.cuda.get_device_name()`` returns it.
    sm
        What one of the ``sms`` holds; None where Triton has no target.
    """

    name: str
    target: tuple[str, int | str, int] | None
    dram_bandwidth: float
    flops: Mapping[str, float]
    dram_bytes: float
    sms: int
    source: Mapping[str, str]
    shared_bytes: int | None = None
    l2_bytes: float | None = None
    l2_bandwidth: float | None = None
    measured_dram_bandwidth: float | None = None
    measured_flops: Mapping[str, float] = field(default_factory=dict)
    driver_names: tuple[str, ...] = ()
    sm: Multiprocessor | None = None

    @property
    def arch(self) -> str | None:
        """Name of the target's architecture, ``"sm_90"`` or ``"gfx942"``; None without a target."""
        if self.target is None:
            return None
        backend, arch, _ = self.target
        return f"sm_{arch}" if backend == "cuda" else str(arch)

    @property
    def half_dtype(self) -> str:
        """``"bfloat16"``, or ``"float16"`` on a device without it."""
        return "bfloat16" if "bfloat16" in self.flops else "float16"

    def bandwidth(self, measured: bool = False) -> float:
        """Return bytes/s to and from DRAM.

        Raises
        ------
        ValueError
            ``measured`` is asked for and unknown.
        """
        if not measured:
            return self.dram_bandwidth
        if self.measured_dram_bandwidth is None:
            raise ValueError(f"no measured bandwidth for {self.name}, use measured=False")
        return self.measured_dram_bandwidth

    def rate(self, dtype: Any = None, measured: bool = False) -> float:
        """Return FLOP/s for a dtype, a name or a ``torch.dtype``; :attr:`half_dtype` by default.

        Raises
        ------
        ValueError
            No figure for that dtype.
        """
        dtype = str(dtype or self.half_dtype).removeprefix("torch.")
        rates = self.measured_flops if measured else self.flops
        if dtype not in rates:
            kind = "measured" if measured else "data-sheet"
            raise ValueError(f"no {kind} {dtype} rate for {self.name}, known: {', '.join(rates) or 'none'}")
        return rates[dtype]

    def ridge(self, dtype: Any = None, measured: bool = False) -> float:
        """Return the intensity in FLOP/byte from which on work is bound by compute."""
        return self.rate(dtype, measured) / self.bandwidth(measured)

    def attainable(self, intensity: float, dtype: Any = None, measured: bool = False) -> float:
        """Return the roofline in FLOP/s at an intensity in FLOP/byte."""
        return min(self.rate(dtype, measured), intensity * self.bandwidth(measured))


_KIB, _MIB = 2**10, 2**20

# Dense rates with float32 accumulation. NVIDIA's newer data sheets print the sparse ones, twice these.
DEVICES: dict[str, Device] = {
    "h100": Device(
        name="H100 80GB HBM3 (SXM)",
        target=("cuda", 90, 32),
        driver_names=("NVIDIA H100 80GB HBM3",),
        dram_bandwidth=3.35e12,
        flops={"float8_e4m3fn": 1979e12, "float16": 989e12, "bfloat16": 989e12, "float32": 67e12},
        dram_bytes=80e9,
        sms=132,
        sm=Multiprocessor(64, 32, 228 * _KIB, 256 * _KIB, 1.98e9),
        shared_bytes=227 * _KIB,
        l2_bytes=50 * _MIB,
        l2_bandwidth=7.7e12,
        measured_dram_bandwidth=3.019e12,
        measured_flops={"bfloat16": 744e12},
        # Fixed, so that what follows from them stays: break-even at B = 72 (TyphoonMLA, equation 1). What another H100
        # reached stands in benchmarks/ceilings_h100.json.
        source={
            "": "NVIDIA H100 data sheet and Hopper architecture whitepaper",
            "l2_bandwidth": "measured once for this course: Triton loads of a resident 40 MiB on an H100 80GB HBM3",
            "measured_dram_bandwidth": "measured once for this course: torch copy_ of 1 Gi bfloat16, the same kind",
            "measured_flops": "measured once for this course: torch matmul of 8192³ random bfloat16, the same kind",
        },
    ),
    "h200": Device(
        name="H200 141GB (SXM)",
        target=("cuda", 90, 32),
        driver_names=("NVIDIA H200",),
        dram_bandwidth=4.8e12,
        flops={"float8_e4m3fn": 1979e12, "float16": 989e12, "bfloat16": 989e12, "float32": 67e12},
        dram_bytes=141e9,
        sms=132,
        sm=Multiprocessor(64, 32, 228 * _KIB, 256 * _KIB, 1.98e9),
        shared_bytes=227 * _KIB,
        l2_bytes=60 * _MIB,  # the whole chip's, one part for each memory controller: an H100 has ten of twelve
        l2_bandwidth=7.7e12 * 12 / 10,
        measured_dram_bandwidth=4.27e12,
        measured_flops={"bfloat16": 687e12},
        source={
            "": "NVIDIA H200 data sheet; processor as H100",
            "l2_bandwidth": "the H100's, for twelve parts of the cache in place of ten",
            "l2_bytes": "cudaDeviceProp.l2CacheSize, in benchmarks/reconstruction_h200.json",
            "measured_dram_bandwidth": "measured once for this course: torch copy_ of 1 Gi bfloat16, an H200",
            "measured_flops": "measured once for this course: torch matmul of 8192³ random bfloat16, an H200",
        },
    ),
    "b200": Device(
        name="B200 180GB (HGX)",
        target=("cuda", 100, 32),
        driver_names=("NVIDIA B200",),
        dram_bandwidth=7.7e12,
        flops={"float8_e4m3fn": 4500e12, "float16": 2250e12, "bfloat16": 2250e12, "float32": 75e12},
        dram_bytes=180e9,
        sms=148,
        sm=Multiprocessor(64, 32, 228 * _KIB, 256 * _KIB, 1.96e9),
        shared_bytes=227 * _KIB,
        l2_bytes=126 * _MIB,
        source={
            "": "NVIDIA HGX B200 data sheet, one of eight GPUs",
            "l2_bytes": "cudaDeviceProp.l2CacheSize",
        },
    ),
    "a100_80gb": Device(
        name="A100 80GB (SXM)",
        target=("cuda", 80, 32),
        driver_names=("NVIDIA A100-SXM4-80GB",),
        dram_bandwidth=2.039e12,
        flops={"float16": 312e12, "bfloat16": 312e12, "float32": 19.5e12},
        dram_bytes=80e9,
        sms=108,
        sm=Multiprocessor(64, 32, 164 * _KIB, 192 * _KIB, 1.41e9),
        shared_bytes=163 * _KIB,
        l2_bytes=40 * _MIB,
        l2_bandwidth=5120 * 1.41e9,
        source={
            "": "NVIDIA A100 data sheet and Ampere architecture whitepaper",
            "l2_bandwidth": "whitepaper: 5120 bytes per clock, read, at the 1.41 GHz boost clock",
        },
    ),
    "l4": Device(
        name="L4",
        target=("cuda", 89, 32),
        driver_names=("NVIDIA L4",),
        dram_bandwidth=300e9,
        flops={"float8_e4m3fn": 242.5e12, "float16": 121e12, "bfloat16": 121e12, "float32": 30.3e12},
        dram_bytes=24e9,
        sms=58,
        sm=Multiprocessor(48, 24, 100 * _KIB, 128 * _KIB, 2.04e9),
        shared_bytes=99 * _KIB,
        l2_bytes=48 * _MIB,
        source={"": "NVIDIA L4 data sheet"},
    ),
    "rtx4090": Device(
        name="GeForce RTX 4090",
        target=("cuda", 89, 32),
        driver_names=("NVIDIA GeForce RTX 4090",),
        dram_bandwidth=1.008e12,
        flops={"float8_e4m3fn": 330.3e12, "float16": 165.2e12, "bfloat16": 165.2e12, "float32": 82.6e12},
        dram_bytes=24e9,
        sms=128,
        sm=Multiprocessor(48, 24, 100 * _KIB, 128 * _KIB, 2.52e9),
        shared_bytes=99 * _KIB,
        l2_bytes=72 * _MIB,
        source={"": "NVIDIA Ada architecture whitepaper, float32 accumulation"},
    ),
    "t4": Device(
        name="T4",
        target=("cuda", 75, 32),
        driver_names=("Tesla T4",),
        dram_bandwidth=320e9,
        flops={"float16": 65e12, "float32": 8.1e12},
        dram_bytes=16e9,
        sms=40,
        sm=Multiprocessor(32, 16, 64 * _KIB, 96 * _KIB, 1.59e9, reserved_bytes=0, matrix_units=False),
        shared_bytes=64 * _KIB,
        l2_bytes=4 * _MIB,
        source={"": "NVIDIA T4 data sheet and Turing architecture whitepaper; no bfloat16"},
    ),
    "mi300x": Device(
        name="Instinct MI300X",
        target=("hip", "gfx942", 64),
        dram_bandwidth=5.3e12,
        flops={
            "float8_e4m3fnuz": 2614.9e12,
            "float16": 1307.4e12,
            "bfloat16": 1307.4e12,
            "float32": 163.4e12,
        },
        dram_bytes=192e9,
        sms=304,
        sm=Multiprocessor(32, 32, 64 * _KIB, 32 * _KIB, 2.1e9, registers=4 * 512 * 64, warp_size=64, reserved_bytes=0),
        shared_bytes=64 * _KIB,
        l2_bytes=256 * _MIB,
        l2_bandwidth=17.2e12,
        source={
            "": "AMD Instinct MI300X data sheet",
            "l2_bytes": "AMD CDNA 3 whitepaper: Infinity Cache, shared by all dies",
            "l2_bandwidth": "AMD CDNA 3 whitepaper: peak of the Infinity Cache",
        },
    ),
    "ascend_910b": Device(
        name="Ascend NPU of TyphoonMLA",
        target=None,
        dram_bandwidth=1.8e12,
        flops={"float16": 376e12},
        dram_bytes=64e9,
        sms=24,
        source={"": "TyphoonMLA, section 4: 376 TOPS/s in FP16, 1.8 TB/s, 64 GB, 24 cores"},
    ),
}


def find_device(driver_name: str | None) -> str | None:
    """Return the key in :data:`DEVICES` of a GPU by the name that its driver gives it; None where it is not there."""
    return next((key for key, device in DEVICES.items() if driver_name in device.driver_names), None)


def hardware_path() -> Path | None:
    """Return the file that `MLA_HARDWARE` names; None where it names none."""
    name = os.environ.get(HARDWARE)
    return Path(name) if name else None


def hardware_file() -> dict[str, Any]:
    """Return the content of the file of a calibrated GPU, `{}` without one.

    `hardware` is the GPU's key in :data:`DEVICES`, `ceilings` has fields of :class:`Device`, `constants` are those of
    the model of kernels' times.

    Raises
    ------
    HardwareError
        It cannot be read, or is of no GPU that is known here.
    """
    path = hardware_path()
    if path is None:
        return {}
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise HardwareError(f"{HARDWARE} names {path}, which cannot be read: {error}") from None
    known = isinstance(found, dict) and found.get("hardware") in DEVICES
    if not known or not found.get("ceilings", {}).keys() <= set(CEILINGS):
        raise HardwareError(
            f"{HARDWARE} names {path}, which `mla-course bench --calibrate` has not written for a GPU known here"
        )
    return found


if _found := hardware_file():
    DEVICES[_found["hardware"]] = replace(DEVICES[_found["hardware"]], **_found.get("ceilings", {}))
