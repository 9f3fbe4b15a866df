//! `CUresult` by name. Both sides speak it; a program may ask for a code's name and text.

use std::ffi::CStr;

/// What a call answers.
pub type Code = u32;

/// A code, for people.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Meaning {
    /// The number.
    pub code: Code,
    /// As `cuGetErrorName` has it.
    pub name: &'static CStr,
    /// In words.
    pub text: &'static CStr,
}

const fn text(bytes: &'static [u8]) -> &'static CStr {
    match CStr::from_bytes_with_nul(bytes) {
        Ok(text) => text,
        Err(_) => c"",
    }
}

macro_rules! codes {
    ($($prefix:literal $name:ident = $code:literal $text:literal;)*) => {
        $(#[doc = concat!("`", $prefix, stringify!($name), "`: ", $text, ".")]
        pub const $name: Code = $code;)*

        /// All of them, ascending.
        pub const ALL: &[Meaning] = &[$(Meaning {
            code: $code,
            name: text(concat!($prefix, stringify!($name), "\0").as_bytes()),
            text: text(concat!($text, "\0").as_bytes()),
        }),*];
    };
}

codes! {
    "CUDA_" SUCCESS = 0 "no error";
    "CUDA_ERROR_" INVALID_VALUE = 1 "a value is out of the range that the call takes";
    "CUDA_ERROR_" OUT_OF_MEMORY = 2 "not enough memory";
    "CUDA_ERROR_" NOT_INITIALIZED = 3 "the driver is not initialised in this process";
    "CUDA_ERROR_" DEINITIALIZED = 4 "the driver has shut down";
    "CUDA_ERROR_" PROFILER_DISABLED = 5 "the profiler is disabled";
    "CUDA_ERROR_" PROFILER_NOT_INITIALIZED = 6 "the profiler is not initialised";
    "CUDA_ERROR_" PROFILER_ALREADY_STARTED = 7 "the profiler runs already";
    "CUDA_ERROR_" PROFILER_ALREADY_STOPPED = 8 "the profiler does not run";
    "CUDA_ERROR_" STUB_LIBRARY = 34 "the driver library is a stub";
    "CUDA_ERROR_" CALL_REQUIRES_NEWER_DRIVER = 36 "the call needs a newer driver";
    "CUDA_ERROR_" DEVICE_UNAVAILABLE = 46 "the device can't be used now";
    "CUDA_ERROR_" NO_DEVICE = 100 "there is no device";
    "CUDA_ERROR_" INVALID_DEVICE = 101 "there is no device of this number";
    "CUDA_ERROR_" DEVICE_NOT_LICENSED = 102 "the device has no licence";
    "CUDA_ERROR_" INVALID_IMAGE = 200 "the image of the kernels is broken";
    "CUDA_ERROR_" INVALID_CONTEXT = 201 "there is no such context, or none is current";
    "CUDA_ERROR_" CONTEXT_ALREADY_CURRENT = 202 "the context is current already";
    "CUDA_ERROR_" MAP_FAILED = 205 "mapping failed";
    "CUDA_ERROR_" UNMAP_FAILED = 206 "unmapping failed";
    "CUDA_ERROR_" ARRAY_IS_MAPPED = 207 "the array is mapped";
    "CUDA_ERROR_" ALREADY_MAPPED = 208 "the resource is mapped already";
    "CUDA_ERROR_" NO_BINARY_FOR_GPU = 209 "the image has no kernels for this device";
    "CUDA_ERROR_" ALREADY_ACQUIRED = 210 "the resource is taken already";
    "CUDA_ERROR_" NOT_MAPPED = 211 "the resource is not mapped";
    "CUDA_ERROR_" NOT_MAPPED_AS_ARRAY = 212 "the resource is not mapped as an array";
    "CUDA_ERROR_" NOT_MAPPED_AS_POINTER = 213 "the resource is not mapped as a pointer";
    "CUDA_ERROR_" ECC_UNCORRECTABLE = 214 "an error of the device's memory could not be corrected";
    "CUDA_ERROR_" UNSUPPORTED_LIMIT = 215 "the device has no such limit";
    "CUDA_ERROR_" CONTEXT_ALREADY_IN_USE = 216 "the context is in use by another thread";
    "CUDA_ERROR_" PEER_ACCESS_UNSUPPORTED = 217 "these devices can't reach each other";
    "CUDA_ERROR_" INVALID_PTX = 218 "the PTX can't be compiled";
    "CUDA_ERROR_" INVALID_GRAPHICS_CONTEXT = 219 "the graphics context is not valid";
    "CUDA_ERROR_" NVLINK_UNCORRECTABLE = 220 "an error of NVLink could not be corrected";
    "CUDA_ERROR_" JIT_COMPILER_NOT_FOUND = 221 "the compiler of PTX is not installed";
    "CUDA_ERROR_" UNSUPPORTED_PTX_VERSION = 222 "the PTX is newer than the driver";
    "CUDA_ERROR_" JIT_COMPILATION_DISABLED = 223 "compiling PTX is disabled";
    "CUDA_ERROR_" UNSUPPORTED_EXEC_AFFINITY = 224 "the device has no such execution affinity";
    "CUDA_ERROR_" UNSUPPORTED_DEVSIDE_SYNC = 225 "the kernels synchronise on the device, which is not supported";
    "CUDA_ERROR_" CONTAINED = 226 "an exception of the device was contained";
    "CUDA_ERROR_" INVALID_SOURCE = 300 "the kernels' source is not valid";
    "CUDA_ERROR_" FILE_NOT_FOUND = 301 "no such file";
    "CUDA_ERROR_" SHARED_OBJECT_SYMBOL_NOT_FOUND = 302 "a symbol of a shared object is missing";
    "CUDA_ERROR_" SHARED_OBJECT_INIT_FAILED = 303 "a shared object could not be initialised";
    "CUDA_ERROR_" OPERATING_SYSTEM = 304 "a call of the operating system failed";
    "CUDA_ERROR_" INVALID_HANDLE = 400 "there is no such object";
    "CUDA_ERROR_" ILLEGAL_STATE = 401 "the object is not in a state for this";
    "CUDA_ERROR_" LOSSY_QUERY = 402 "the answer would lose what the question has no room for";
    "CUDA_ERROR_" NOT_FOUND = 500 "no such name";
    "CUDA_ERROR_" NOT_READY = 600 "the work is not done yet";
    "CUDA_ERROR_" ILLEGAL_ADDRESS = 700 "a kernel used an address that it may not";
    "CUDA_ERROR_" LAUNCH_OUT_OF_RESOURCES = 701 "the launch asks for more than the device has";
    "CUDA_ERROR_" LAUNCH_TIMEOUT = 702 "a kernel ran for too long";
    "CUDA_ERROR_" LAUNCH_INCOMPATIBLE_TEXTURING = 703 "the launch mixes modes of texturing";
    "CUDA_ERROR_" PEER_ACCESS_ALREADY_ENABLED = 704 "access to this peer is enabled already";
    "CUDA_ERROR_" PEER_ACCESS_NOT_ENABLED = 705 "access to this peer is not enabled";
    "CUDA_ERROR_" PRIMARY_CONTEXT_ACTIVE = 708 "the primary context is active already";
    "CUDA_ERROR_" CONTEXT_IS_DESTROYED = 709 "the context is gone";
    "CUDA_ERROR_" ASSERT = 710 "an assertion failed in a kernel";
    "CUDA_ERROR_" TOO_MANY_PEERS = 711 "no more peers can be reached";
    "CUDA_ERROR_" HOST_MEMORY_ALREADY_REGISTERED = 712 "the memory is registered already";
    "CUDA_ERROR_" HOST_MEMORY_NOT_REGISTERED = 713 "the memory is not registered";
    "CUDA_ERROR_" HARDWARE_STACK_ERROR = 714 "a kernel's stack is broken";
    "CUDA_ERROR_" ILLEGAL_INSTRUCTION = 715 "a kernel has an illegal instruction";
    "CUDA_ERROR_" MISALIGNED_ADDRESS = 716 "a kernel used a misaligned address";
    "CUDA_ERROR_" INVALID_ADDRESS_SPACE = 717 "a kernel used an address of the wrong space";
    "CUDA_ERROR_" INVALID_PC = 718 "a kernel jumped to an invalid address";
    "CUDA_ERROR_" LAUNCH_FAILED = 719 "a kernel failed";
    "CUDA_ERROR_" COOPERATIVE_LAUNCH_TOO_LARGE = 720 "the cooperative launch has too many blocks";
    "CUDA_ERROR_" TENSOR_MEMORY_LEAK = 721 "a kernel ended without freeing tensor memory";
    "CUDA_ERROR_" NOT_PERMITTED = 800 "the operation is not permitted";
    "CUDA_ERROR_" NOT_SUPPORTED = 801 "the call is not supported";
    "CUDA_ERROR_" SYSTEM_NOT_READY = 802 "the system is not ready for CUDA";
    "CUDA_ERROR_" SYSTEM_DRIVER_MISMATCH = 803 "the driver's parts are of different versions";
    "CUDA_ERROR_" COMPAT_NOT_SUPPORTED_ON_DEVICE = 804 "the device does not support this driver's compatibility mode";
    "CUDA_ERROR_" MPS_CONNECTION_FAILED = 805 "no connection to MPS";
    "CUDA_ERROR_" MPS_RPC_FAILURE = 806 "a call to MPS failed";
    "CUDA_ERROR_" MPS_SERVER_NOT_READY = 807 "MPS is not ready";
    "CUDA_ERROR_" MPS_MAX_CLIENTS_REACHED = 808 "MPS has no room for another client";
    "CUDA_ERROR_" MPS_MAX_CONNECTIONS_REACHED = 809 "MPS has no room for another connection";
    "CUDA_ERROR_" MPS_CLIENT_TERMINATED = 810 "MPS ended this client";
    "CUDA_ERROR_" CDP_NOT_SUPPORTED = 811 "launching from the device is not supported";
    "CUDA_ERROR_" CDP_VERSION_MISMATCH = 812 "the kernels launch from the device in two ways";
    "CUDA_ERROR_" STREAM_CAPTURE_UNSUPPORTED = 900 "the call can't be captured";
    "CUDA_ERROR_" STREAM_CAPTURE_INVALIDATED = 901 "an earlier error ended the capture";
    "CUDA_ERROR_" STREAM_CAPTURE_MERGE = 902 "two captures would be merged";
    "CUDA_ERROR_" STREAM_CAPTURE_UNMATCHED = 903 "the capture was not begun on this stream";
    "CUDA_ERROR_" STREAM_CAPTURE_UNJOINED = 904 "a stream of the capture was not joined";
    "CUDA_ERROR_" STREAM_CAPTURE_ISOLATION = 905 "the capture would depend on work outside of it";
    "CUDA_ERROR_" STREAM_CAPTURE_IMPLICIT = 906 "the capture would depend on the default stream";
    "CUDA_ERROR_" CAPTURED_EVENT = 907 "the event belongs to a capture";
    "CUDA_ERROR_" STREAM_CAPTURE_WRONG_THREAD = 908 "another thread began the capture";
    "CUDA_ERROR_" TIMEOUT = 909 "the time is over";
    "CUDA_ERROR_" GRAPH_EXEC_UPDATE_FAILURE = 910 "the executable graph can't be updated to this";
    "CUDA_ERROR_" EXTERNAL_DEVICE = 911 "another device of the system failed";
    "CUDA_ERROR_" INVALID_CLUSTER_SIZE = 912 "the clusters are not of a size that works";
    "CUDA_ERROR_" FUNCTION_NOT_LOADED = 913 "the function is not loaded";
    "CUDA_ERROR_" INVALID_RESOURCE_TYPE = 914 "the resource is not of the right kind";
    "CUDA_ERROR_" INVALID_RESOURCE_CONFIGURATION = 915 "the resource is not set up for this";
    "CUDA_ERROR_" KEY_ROTATION = 916 "the keys of protected memory are being changed";
    "CUDA_ERROR_" UNKNOWN = 999 "an unknown error";
}

/// What a code means, if it is one.
#[must_use]
pub fn meaning(code: Code) -> Option<&'static Meaning> {
    let at = ALL.binary_search_by_key(&code, |m| m.code).ok()?;
    ALL.get(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_has_a_name_and_a_text() {
        assert!(ALL.is_sorted_by(|a, b| a.code < b.code));
        assert!(ALL.iter().all(|m| !m.name.is_empty() && !m.text.is_empty()));
        let unknown = meaning(UNKNOWN).map(|m| m.name);
        assert_eq!(unknown, Some(c"CUDA_ERROR_UNKNOWN"));
        assert_eq!(meaning(SUCCESS).map(|m| m.name), Some(c"CUDA_SUCCESS"));
        assert_eq!(meaning(12345), None);
    }
}
