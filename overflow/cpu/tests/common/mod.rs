//! Entry points by name, and the few steps that every test begins with.

use std::ffi::{CString, c_void};

pub(crate) const KERNELS: &str = include_str!("../../ptx/kernels.ptx");

/// Calls an entry point with arguments of the C types.
macro_rules! cu {
    ($name:ident($($arg:expr => $ty:ty),* $(,)?)) => {{
        let at = ghost_cpu_device::resolve(stringify!($name)).expect(stringify!($name));
        // SAFETY: the entry point has these arguments in cuda.h.
        let call: unsafe extern "C" fn($($ty),*) -> u32 = unsafe { std::mem::transmute(at) };
        // SAFETY: each test gives pointers that it may.
        unsafe { call($($arg),*) }
    }};
}
pub(crate) use cu;

/// A context on device 0, current here.
pub(crate) fn start() -> usize {
    let mut context = 0;
    assert_eq!(cu!(cuInit(0 => u32)), 0);
    assert_eq!(
        cu!(cuDevicePrimaryCtxRetain(&mut context => &mut usize, 0 => i32)),
        0
    );
    assert_eq!(cu!(cuCtxSetCurrent(context => usize)), 0);
    context
}

pub(crate) fn load(text: &str) -> usize {
    let text = CString::new(text).unwrap();
    let mut module = 0;
    let code =
        cu!(cuModuleLoadData(&mut module => &mut usize, text.as_ptr().cast() => *const c_void));
    assert_eq!(code, 0);
    module
}

pub(crate) fn function(module: usize, name: &str) -> usize {
    let name = CString::new(name).unwrap();
    let mut function = 0;
    let code = cu!(cuModuleGetFunction(
        &mut function => &mut usize, module => usize, name.as_ptr() => *const i8,
    ));
    assert_eq!(code, 0);
    function
}

pub(crate) fn alloc(bytes: usize) -> u64 {
    let mut at = 0;
    assert_eq!(cu!(cuMemAlloc_v2(&mut at => &mut u64, bytes => usize)), 0);
    at
}

/// What `data` becomes on the device.
pub(crate) fn upload<T: Copy>(data: &[T]) -> u64 {
    let at = alloc(size_of_val(data));
    let code = cu!(cuMemcpyHtoD_v2(
        at => u64, data.as_ptr().cast() => *const c_void, size_of_val(data) => usize,
    ));
    assert_eq!(code, 0);
    at
}

pub(crate) fn download<T: Copy + Default>(at: u64, count: usize) -> Vec<T> {
    let mut out = vec![T::default(); count];
    let code = cu!(cuMemcpyDtoH_v2(
        out.as_mut_ptr().cast() => *mut c_void, at => u64, size_of_val(&out[..]) => usize,
    ));
    assert_eq!(code, 0);
    out
}

/// Launches; an argument is its 8 bytes.
pub(crate) fn launch(
    function: usize,
    grid: [u32; 2],
    block: [u32; 2],
    stream: usize,
    args: &[u64],
) -> u32 {
    let pointers: Vec<*const u64> = args.iter().map(|a| a as *const u64).collect();
    cu!(cuLaunchKernel(
        function => usize, grid[0] => u32, grid[1] => u32, 1 => u32, block[0] => u32,
        block[1] => u32, 1 => u32, 0 => u32, stream => usize,
        pointers.as_ptr() => *const *const u64, std::ptr::null() => *const c_void,
    ))
}
