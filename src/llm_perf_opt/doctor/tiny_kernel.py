"""A program with three kernel launches, to see whether the GPU and the profilers work.

It needs the driver and nothing else: neither PyTorch nor a compiler nor the CUDA toolkit. The driver compiles
the kernel from PTX. It is run as a file, without this package on the path:

    python -I tiny_kernel.py

and prints one line of JSON: the device and what came of it. Exit 0: the kernel ran and computed what it
should; 3: there is no driver or no GPU; 1: CUDA failed.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import sys
from collections.abc import Iterator

LAUNCHES = 3
KERNEL = "llm_perf_doctor_kernel"
RANGE = "llm_perf_doctor"
BLOCKS, THREADS = 64, 128

# What every GPU since Maxwell runs; should a driver refuse it one day, newer words for the same are tried.
TARGETS = (("6.0", "sm_50"), ("6.3", "sm_75"), ("7.8", "sm_90"), ("8.7", "sm_100"), ("8.7", "sm_120"))
# out[i] = 3 * i, with i the number of the thread
PTX = """\
.version {version}
.target {target}
.address_size 64
.visible .entry {kernel}(.param .u64 out)
{{
    .reg .u32 %r<6>;
    .reg .u64 %a<4>;
    ld.param.u64 %a1, [out];
    cvta.to.global.u64 %a1, %a1;
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %ntid.x;
    mov.u32 %r3, %tid.x;
    mad.lo.u32 %r4, %r1, %r2, %r3;
    mul.lo.u32 %r5, %r4, 3;
    mul.wide.u32 %a2, %r4, 4;
    add.u64 %a3, %a1, %a2;
    st.global.u32 [%a3], %r5;
    ret;
}}
"""
_NO_GPU = (100, 101)  # CUDA_ERROR_NO_DEVICE, CUDA_ERROR_INVALID_DEVICE


class CudaError(Exception):
    """A call of the driver failed."""

    def __init__(self, call: str, code: int, name: str) -> None:
        super().__init__(f"{call} failed with error {code} ({name})")
        self.code = code


class Driver:
    """The few calls of libcuda that are needed."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library

    def call(self, name: str, *arguments: object) -> None:
        code = int(getattr(self._library, name)(*arguments))
        if code:
            text = ctypes.c_char_p()
            self._library.cuGetErrorName(code, ctypes.byref(text))
            raise CudaError(name, code, (text.value or b"unknown").decode("ascii", "replace"))


def run(driver: Driver) -> dict[str, object]:
    """Launch the kernel and look at what it wrote."""
    driver.call("cuInit", 0)
    device = ctypes.c_int()
    driver.call("cuDeviceGet", ctypes.byref(device), 0)
    name = ctypes.create_string_buffer(256)
    driver.call("cuDeviceGetName", name, len(name), device)
    context = ctypes.c_void_p()
    driver.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    driver.call("cuCtxSetCurrent", context)
    function = _load(driver)
    values = (ctypes.c_uint32 * (BLOCKS * THREADS))()
    memory = ctypes.c_uint64()
    driver.call("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(ctypes.sizeof(values)))
    parameters = (ctypes.c_void_p * 1)(ctypes.addressof(memory))
    with _range():
        for _ in range(LAUNCHES):
            driver.call("cuLaunchKernel", function, BLOCKS, 1, 1, THREADS, 1, 1, 0, None, parameters, None)
        driver.call("cuCtxSynchronize")
    driver.call("cuMemcpyDtoH_v2", values, memory, ctypes.c_size_t(ctypes.sizeof(values)))
    driver.call("cuMemFree_v2", memory)
    driver.call("cuDevicePrimaryCtxRelease_v2", device)
    return {
        "device": name.value.decode("utf-8", "replace"),
        "right": list(values) == [3 * i for i in range(BLOCKS * THREADS)],
    }


def _load(driver: Driver) -> ctypes.c_void_p:
    """The kernel, compiled by the driver."""
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    refused: CudaError | None = None
    for version, target in TARGETS:
        ptx = PTX.format(version=version, target=target, kernel=KERNEL).encode()
        try:
            driver.call("cuModuleLoadData", ctypes.byref(module), ctypes.c_char_p(ptx))
        except CudaError as error:
            refused = refused or error
            continue
        driver.call("cuModuleGetFunction", ctypes.byref(function), module, KERNEL.encode())
        return function
    assert refused is not None
    raise refused


@contextlib.contextmanager
def _range() -> Iterator[None]:
    """An NVTX range around the launches, where the package is there."""
    try:
        import nvtx
    except ImportError:
        yield
        return
    with nvtx.annotate(RANGE):
        yield


def main() -> int:
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        print(json.dumps({"error": f"the driver's library cannot be loaded: {error}"}))
        return 3
    try:
        result = run(Driver(library))
    except CudaError as error:
        print(json.dumps({"error": str(error)}))
        return 3 if error.code in _NO_GPU else 1
    if not result["right"]:
        result["error"] = "the kernel ran but computed something wrong"
    print(json.dumps(result))
    return 0 if result["right"] else 1


if __name__ == "__main__":
    sys.exit(main())
