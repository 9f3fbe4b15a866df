//! Kernels against the same computed here.

mod common;
use common::*;

fn f(value: f32) -> u64 {
    u64::from(value.to_bits())
}

fn numbers(n: usize) -> Vec<f32> {
    (0..n).map(|i| ((i * 7919) % 1000) as f32 / 8.0).collect()
}

#[test]
fn vectors_are_added() {
    start();
    let module = load(KERNELS);
    let (a, b) = (numbers(1000), numbers(1100)[100..].to_vec());
    let (da, db, dc) = (upload(&a), upload(&b), alloc(4000));
    let vadd = function(module, "vadd");
    assert_eq!(launch(vadd, [4, 1], [256, 1], 0, &[da, db, dc, 1000]), 0);
    let expected: Vec<f32> = a.iter().zip(&b).map(|(a, b)| a + b).collect();
    assert_eq!(download::<f32>(dc, 1000), expected);
}

#[test]
fn saxpy_is_fused() {
    start();
    let module = load(KERNELS);
    let (x, y) = (numbers(777), numbers(777));
    let (dx, dy) = (upload(&x), upload(&y));
    let saxpy = function(module, "saxpy");
    assert_eq!(
        launch(saxpy, [4, 1], [256, 1], 0, &[777, f(0.1), dx, dy]),
        0
    );
    let expected: Vec<f32> = x
        .iter()
        .zip(&y)
        .map(|(x, y)| 0.1_f32.mul_add(*x, *y))
        .collect();
    assert_eq!(download::<f32>(dy, 777), expected);
    // The kernel says how many threads a block may have.
    assert_eq!(
        launch(saxpy, [1, 1], [512, 1], 0, &[777, f(0.1), dx, dy]),
        701
    );
}

#[test]
fn sums_go_through_shared_memory_and_barriers() {
    start();
    let module = load(KERNELS);
    let x = numbers(1000);
    let (dx, out) = (upload(&x), alloc(16));
    assert_eq!(
        launch(
            function(module, "reduce"),
            [4, 1],
            [256, 1],
            0,
            &[dx, out, 1000]
        ),
        0
    );
    // Eighths below 2^20 add up exactly in any order.
    let expected: Vec<f32> = x.chunks(256).map(|c| c.iter().sum()).collect();
    assert_eq!(download::<f32>(out, 4), expected);
}

#[test]
fn matrices_are_multiplied_in_tiles() {
    start();
    let module = load(KERNELS);
    let n = 48;
    let (a, b) = (numbers(n * n), numbers(n * n));
    let (da, db, dc) = (upload(&a), upload(&b), alloc(n * n * 4));
    let matmul = function(module, "matmul");
    assert_eq!(
        launch(matmul, [3, 3], [16, 16], 0, &[da, db, dc, n as u64]),
        0
    );
    let cell = |i: usize| {
        let (row, column) = (i / n, i % n);
        (0..n).fold(0.0_f32, |sum, k| {
            a[row * n + k].mul_add(b[k * n + column], sum)
        })
    };
    let expected: Vec<f32> = (0..n * n).map(cell).collect();
    assert_eq!(download::<f32>(dc, n * n), expected);
}

#[test]
fn a_histogram_is_counted_with_atomics() {
    start();
    let module = load(KERNELS);
    let bytes: Vec<u8> = (0..5000_u32).map(|i| (i * i % 251) as u8).collect();
    let (data, counts) = (upload(&bytes), upload(&[0_u32; 256]));
    let histogram = function(module, "histogram");
    assert_eq!(
        launch(histogram, [20, 1], [256, 1], 0, &[data, counts, 5000]),
        0
    );
    let mut expected = vec![0_u32; 256];
    bytes.iter().for_each(|b| expected[usize::from(*b)] += 1);
    assert_eq!(download::<u32>(counts, 256), expected);
}

#[test]
fn lanes_exchange_and_vote() {
    start();
    let out = alloc(16);
    let module = load(KERNELS);
    assert_eq!(
        launch(function(module, "warpsum"), [1, 1], [64, 1], 0, &[out]),
        0
    );
    assert_eq!(
        download::<u32>(out, 4),
        [496, 0x5555_5555, 496, 0x5555_5555]
    );
}

#[test]
fn variables_have_their_first_values() {
    start();
    let module = load(KERNELS);
    let global = |name: &std::ffi::CStr| {
        let (mut at, mut size) = (0, 0);
        let code = cu!(cuModuleGetGlobal_v2(
            &mut at => &mut u64, &mut size => &mut usize, module => usize,
            name.as_ptr() => *const i8,
        ));
        (code, at, size)
    };
    let (_, table, size) = global(c"table");
    assert_eq!(size, 16);
    assert_eq!(download::<u32>(table, 4), [1, 2, 3, 4]);
    let (_, launches, _) = global(c"launches");
    let (_, at, _) = global(c"where");
    assert_eq!(download::<u64>(at, 1), [launches]);
    assert_eq!(global(c"nothing").0, 500);
    let counter = upload(&[0_u32]);
    assert_eq!(
        launch(function(module, "count"), [1, 1], [1, 1], 0, &[counter, 5]),
        0
    );
    assert_eq!(download::<u32>(counter, 1), [5]);
    assert_eq!(download::<u32>(launches, 1), [1]);
}
