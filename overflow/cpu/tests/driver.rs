//! What a program sees of the driver: failures, order, callbacks. Each test is a process of its own
//! (nextest), because the environment is read once.

mod common;
use common::*;
use proptest::prelude::*;
use std::ffi::{CStr, CString, c_void};
use std::sync::Mutex;

const UNSUPPORTED: &str = include_str!("../ptx/unsupported.ptx");

fn set(name: &str, value: &str) {
    // SAFETY: the first thing that a test does, while it is the only thread that reads it.
    unsafe { std::env::set_var(name, value) };
}

#[test]
fn an_illegal_address_is_told_late_and_stays() {
    start();
    let module = load(KERNELS);
    let memory = alloc(64);
    assert_eq!(
        launch(function(module, "illegal"), [1, 1], [1, 1], 0, &[]),
        0
    );
    assert_eq!(cu!(cuCtxSynchronize()), 700);
    assert_eq!(cu!(cuCtxSynchronize()), 700);
    // A context that has failed is told before the handle is looked up.
    assert_eq!(launch(module, [1, 1], [1, 1], 0, &[]), 700);
    let mut byte = 0_u8;
    let code = cu!(cuMemcpyDtoH_v2(&mut byte => &mut u8, memory => u64, 1 => usize));
    assert_eq!(code, 700);
    // Another context is sound.
    let mut other = 0_usize;
    assert_eq!(
        cu!(cuCtxCreate_v2(&mut other => &mut usize, 0 => u32, 0 => i32)),
        0
    );
    let module = load(KERNELS);
    let counter = upload(&[0_u32]);
    assert_eq!(
        launch(function(module, "count"), [1, 1], [1, 1], 0, &[counter, 3]),
        0
    );
    assert_eq!(download::<u32>(counter, 1), [3]);
}

#[test]
fn what_is_past_the_end_is_illegal() {
    start();
    let module = load(KERNELS);
    let short = alloc(1000);
    assert_eq!(
        launch(
            function(module, "vadd"),
            [4, 1],
            [256, 1],
            0,
            &[short, short, short, 1000]
        ),
        0
    );
    assert_eq!(cu!(cuCtxSynchronize()), 700);
}

#[test]
fn a_kernel_that_never_ends_is_ended() {
    set("GHOST_CPU_INSTRUCTIONS", "100000");
    start();
    let module = load(KERNELS);
    assert_eq!(
        launch(function(module, "forever"), [1, 1], [1, 1], 0, &[]),
        0
    );
    assert_eq!(cu!(cuCtxSynchronize()), 702);
}

#[test]
fn an_opcode_that_is_not_supported_is_named() {
    start();
    let text = CString::new(UNSUPPORTED).unwrap();
    let mut log = [0_u8; 256];
    let options = [5_u32, 6];
    let mut values = [log.as_mut_ptr() as usize, log.len()];
    let mut module = 0_usize;
    let code = cu!(cuModuleLoadDataEx(
        &mut module => &mut usize, text.as_ptr() => *const i8, 2 => u32,
        options.as_ptr() => *const u32, values.as_mut_ptr() => *mut usize,
    ));
    assert_eq!(code, 218);
    let said = CStr::from_bytes_until_nul(&log).unwrap().to_str().unwrap();
    assert!(said.contains("line 10: `dp4a.s32.s32`"), "{said}");
    assert_eq!(values[1], said.len() + 1);
}

fn stream(flags: u32) -> usize {
    let mut stream = 0;
    assert_eq!(
        cu!(cuStreamCreate(&mut stream => &mut usize, flags => u32)),
        0
    );
    stream
}

#[test]
fn a_stream_waits_for_an_event_of_another() {
    set("GHOST_CPU_LAUNCH_US", "50000");
    start();
    let module = load(KERNELS);
    let count = function(module, "count");
    let (a, b) = (stream(1), stream(1));
    let (counter, copy) = (upload(&[0_u32]), upload(&[99_u32]));
    let mut event = 0;
    assert_eq!(cu!(cuEventCreate(&mut event => &mut usize, 2 => u32)), 0);
    assert_eq!(launch(count, [1, 1], [1, 1], a, &[counter, 1000]), 0);
    assert_eq!(cu!(cuEventRecord(event => usize, a => usize)), 0);
    // The launch takes 50 ms, which it has not taken yet.
    assert_eq!(cu!(cuEventQuery(event => usize)), 600);
    assert_eq!(cu!(cuStreamQuery(a => usize)), 600);
    assert_eq!(cu!(cuStreamQuery(b => usize)), 0);
    assert_eq!(
        cu!(cuStreamWaitEvent(b => usize, event => usize, 0 => u32)),
        0
    );
    let code = cu!(cuMemcpyDtoDAsync_v2(copy => u64, counter => u64, 4 => usize, b => usize));
    assert_eq!(code, 0);
    assert_eq!(cu!(cuStreamSynchronize(b => usize)), 0);
    assert_eq!(cu!(cuEventQuery(event => usize)), 0);
    assert_eq!(download::<u32>(copy, 1), [1000]);
}

#[test]
fn the_legacy_stream_waits_for_blocking_streams_and_they_for_it() {
    set("GHOST_CPU_LAUNCH_US", "20000");
    start();
    let module = load(KERNELS);
    let count = function(module, "count");
    let (a, b) = (stream(0), stream(0));
    let counter = upload(&[0_u32]);
    for queue in [a, 0, b] {
        assert_eq!(launch(count, [1, 1], [1, 1], queue, &[counter, 100]), 0);
    }
    assert_eq!(cu!(cuStreamQuery(b => usize)), 600);
    assert_eq!(cu!(cuStreamSynchronize(b => usize)), 0);
    assert_eq!(cu!(cuStreamQuery(a => usize)), 0);
    assert_eq!(cu!(cuStreamQuery(0 => usize)), 0);
    assert_eq!(download::<u32>(counter, 1), [300]);
}

static SAID: Mutex<Vec<usize>> = Mutex::new(Vec::new());

extern "C" fn say(what: *mut c_void) {
    // A callback may not call the driver.
    let refused = cu!(cuCtxSynchronize());
    SAID.lock()
        .unwrap()
        .push(what as usize + refused as usize * 1000);
}

#[test]
fn callbacks_come_in_order() {
    start();
    let s = stream(1);
    for i in 1..=3_usize {
        let code = cu!(cuLaunchHostFunc(
            s => usize, say => extern "C" fn(*mut c_void), i => usize,
        ));
        assert_eq!(code, 0);
    }
    assert_eq!(cu!(cuStreamSynchronize(s => usize)), 0);
    assert_eq!(*SAID.lock().unwrap(), [800_001, 800_002, 800_003]);
}

#[test]
fn a_source_is_free_once_an_asynchronous_copy_returns() {
    set("GHOST_CPU_LAUNCH_US", "20000");
    start();
    let module = load(KERNELS);
    let s = stream(1);
    let to = upload(&[0_u32]);
    // The copy waits behind this.
    assert_eq!(
        launch(function(module, "count"), [1, 1], [1, 1], s, &[to, 1]),
        0
    );
    let mut source = [7_u32];
    let code = cu!(cuMemcpyHtoDAsync_v2(
        to => u64, source.as_ptr() => *const u32, 4 => usize, s => usize,
    ));
    assert_eq!(code, 0);
    source[0] = 8;
    assert_eq!(cu!(cuStreamSynchronize(s => usize)), 0);
    assert_eq!(download::<u32>(to, 1), [7]);
    assert_eq!(source, [8]);
}

#[test]
fn hostile_handles_and_pointers_are_refused() {
    let mut count = 0;
    assert_eq!(cu!(cuDeviceGetCount(&mut count => &mut i32)), 3);
    start();
    assert_eq!(cu!(cuDeviceGetCount(std::ptr::null_mut() => *mut i32)), 1);
    assert_eq!(cu!(cuDeviceGetCount(&mut count => &mut i32)), 0);
    assert_eq!(count, 1);
    assert_eq!(launch(0xdead_beef, [1, 1], [1, 1], 0, &[]), 400);
    assert_eq!(cu!(cuStreamSynchronize(0xdead_beef => usize)), 400);
    assert_eq!(cu!(cuEventRecord(4 => usize, 0 => usize)), 400);
    assert_eq!(cu!(cuCtxSetCurrent(0x1234 => usize)), 201);
    assert_eq!(cu!(cuModuleUnload(0x1234 => usize)), 400);
    assert_eq!(cu!(cuMemFree_v2(0x1234 => u64)), 1);
    assert_eq!(cu!(cuMemsetD8_v2(0x1234 => u64, 1 => u8, 1 => usize)), 1);
    let mut table = 1_usize;
    assert_eq!(
        cu!(cuGetExportTable(&mut table => &mut usize, 0 => usize)),
        500
    );
    assert_eq!(table, 0);
}

#[test]
fn memory_is_bounded_and_comes_back() {
    set("GHOST_CPU_MEMORY", "1048576");
    start();
    let whole = alloc(1 << 20);
    let mut at = 0;
    assert_eq!(cu!(cuMemAlloc_v2(&mut at => &mut u64, 1 => usize)), 2);
    assert_eq!(cu!(cuMemFree_v2(whole => u64)), 0);
    let (mut free, mut total) = (0, 0);
    assert_eq!(
        cu!(cuMemGetInfo_v2(&mut free => &mut usize, &mut total => &mut usize)),
        0
    );
    assert_eq!((free, total), (1 << 20, 1 << 20));
    assert_eq!(alloc(100) % 256, 0);
}

#[test]
fn entry_points_are_found_by_version() {
    start();
    let resolve = |name: &CStr, version: i32| {
        let (mut at, mut status) = (0, 9);
        let code = cu!(cuGetProcAddress_v2(
            name.as_ptr() => *const i8, &mut at => &mut usize, version => i32, 0 => u64,
            &mut status => &mut u32,
        ));
        (code, at, status)
    };
    let symbol = |name| ghost_cpu_device::resolve(name).unwrap() as usize;
    assert_eq!(
        resolve(c"cuMemAlloc", 12080),
        (0, symbol("cuMemAlloc_v2"), 0)
    );
    assert_eq!(
        resolve(c"cuCtxCreate", 11000),
        (0, symbol("cuCtxCreate_v2"), 0)
    );
    assert_eq!(
        resolve(c"cuCtxCreate", 12080),
        (0, symbol("cuCtxCreate_v4"), 0)
    );
    assert_eq!(resolve(c"", 12080), (500, 0, 1));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn a_changed_kernel_ends_with_a_code(
        lines in proptest::collection::vec((0..400_usize, 0..400_usize), 1..6),
        immediate in any::<i64>(),
        name in prop::sample::select(vec!["vadd", "saxpy", "reduce", "matmul", "histogram", "warpsum", "count"]),
        args in proptest::collection::vec(prop_oneof![0..4096_u64, any::<u64>()], 4),
    ) {
        static ONCE: std::sync::Once = std::sync::Once::new();
        ONCE.call_once(|| set("GHOST_CPU_INSTRUCTIONS", "200000"));
        assert_eq!(cu!(cuInit(0 => u32)), 0);
        let mut context = 0_usize;
        assert_eq!(cu!(cuCtxCreate_v2(&mut context => &mut usize, 0 => u32, 0 => i32)), 0);
        let memory = alloc(8192);
        let mut text: Vec<String> = KERNELS.lines().map(str::to_owned).collect();
        let count = text.len();
        for (to, from) in lines {
            // One line's instruction in another's place, or its last number another.
            let from = text[from % count].clone();
            let line = &mut text[to % count];
            if line.starts_with('\t') && from.starts_with('\t') {
                *line = from.replace(" 16", &format!(" {immediate}"));
            }
        }
        let text = CString::new(text.join("\n")).unwrap();
        let mut module = 0_usize;
        let code = cu!(cuModuleLoadData(&mut module => &mut usize, text.as_ptr() => *const i8));
        if code == 0 {
            let args: Vec<u64> = (0..).zip(args).map(|(i, a)| if i < 2 { memory + a % 8192 } else { a }).collect();
            let code = launch(function(module, name), [2, 2], [32, 4], 0, &args);
            prop_assert!([0, 701].contains(&code), "{code}");
            let code = cu!(cuCtxSynchronize());
            // What the engine answers for a panic, 719, would be one of `trap` too, and there is none.
            prop_assert!([0, 700, 702, 716].contains(&code), "{code}");
        } else {
            prop_assert_eq!(code, 218);
        }
        assert_eq!(cu!(cuCtxDestroy_v2(context => usize)), 0);
    }
}
