use std::fs::File;
use std::io;
use std::os::fd::AsFd;

use proptest::prelude::*;

use super::*;
use crate::abi::memory::{HEAP_ALLOC_PITCH, HEAP_ALLOC_RANGE, HEAP_ALLOC_SIZE};

/// The memory of an argument.
fn bytes<T: Copy>(value: &T) -> Vec<u8> {
    // SAFETY: the arguments have no gaps between their fields, so each byte is written.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(value).cast(), size_of::<T>()) }.to_vec()
}

fn cmd<T>(number: u8) -> u32 {
    iowr(number, size_of::<T>()) as u32
}

fn head(function: u32) -> Heap {
    Heap {
        root: 1,
        parent: 2,
        function,
        vaspace: 0,
        ivc_heap: 0,
        pad: 0,
        status: 9,
        total: 0,
        free: 0,
        body: [0; 18],
    }
}

#[test]
fn a_number_is_taken_with_its_sizes_whatever_type_and_direction() {
    let sizes: &[(u8, &[usize])] = &[
        (ESC_RM_ALLOC, &[48, 32]),
        (ESC_RM_FREE, &[16]),
        (ESC_RM_DUP_OBJECT, &[28]),
        (ESC_RM_CONTROL, &[32]),
        (ESC_RM_ALLOC_MEMORY, &[56]),
        (ESC_RM_VID_HEAP_CONTROL, &[184]),
        (ESC_IOCTL_XFER_CMD, &[16]),
    ];
    for &(number, sizes) in sizes {
        assert!(NUMBERS.contains(&number));
        for size in 0..256 {
            let cmd = iowr(number, size) as u32;
            let wanted = sizes.contains(&size).then_some(size);
            assert_eq!(argument_size(cmd), wanted);
            // No direction, type 0.
            assert_eq!(argument_size(cmd & 0x3fff_00ff), wanted);
        }
    }
    assert_eq!(sizes.len(), NUMBERS.len());
    let others = (0..=u8::MAX).filter(|n| !NUMBERS.contains(n));
    for number in others {
        for size in [16, 28, 32, 48, 56, 184] {
            assert_eq!(argument_size(iowr(number, size) as u32), None);
        }
    }
}

#[test]
fn a_wrapper_holds_one_call_and_no_wrapper() {
    let wrapped = |cmd, size| {
        let wrapper = Wrapper {
            cmd,
            size,
            argument: 77,
        };
        let call = parse(cmd_of_wrapper(), &bytes(&wrapper)).unwrap();
        let Call::Wrapped(call) = call else {
            panic!("{call:?}")
        };
        assert_eq!(call.at, 77);
        call.cmd
    };
    assert_eq!(wrapped(0x2B, 48), Some(0xC030_462B));
    assert_eq!(wrapped(0x4A, 184), Some(0xC0B8_464A));
    for (number, size) in [
        (0xD3, 16),
        (0x12B, 48),
        (0xC030_462B, 48),
        (0x2B, 49),
        (0x2B, 0x4030),
        (0x2B, 0x1_0030),
        (0x2B, u32::MAX),
        (0x4E, 56),
    ] {
        assert_eq!(wrapped(number, size), None, "{number:#x} {size:#x}");
    }
}

fn cmd_of_wrapper() -> u32 {
    cmd::<Wrapper>(ESC_IOCTL_XFER_CMD)
}

#[test]
fn pages_are_charged_as_the_driver_gives_them() {
    let taken = |size, attr, attr2| {
        let params = MemoryParams {
            size,
            attr,
            attr2,
            ..MemoryParams::default()
        };
        device_memory(&bytes(&params)).unwrap().bytes()
    };
    // As libcuda asks for them (driver 580, H200).
    assert_eq!(taken(0x42_0000, 0x1800_0000, 0), 0x60_0000);
    assert_eq!(taken(0x555_5800, 0x3800_0000, 0), 0x560_0000);
    assert_eq!(taken(2 << 20, 0x1980_0000, 0x10_0005), 2 << 20);
    assert_eq!(taken(1, MemoryParams::PAGE_BIG, 0), 64 << 10);
    assert_eq!(taken(1, MemoryParams::PAGE_4K, 0), 64 << 10);
    let huge = MemoryParams::PAGE_HUGE;
    assert_eq!(taken(1, huge, MemoryParams::HUGE_512M), 512 << 20);
    assert_eq!(taken(1, huge, MemoryParams::HUGE_256G), 256 << 30);
    assert_eq!(taken(u64::MAX, 0, 0), u64::MAX);
    // The host's.
    assert_eq!(taken(1 << 30, 1 << 25, 0), 0);
    assert_eq!(taken(1 << 30, 3 << 25, 0), 0);
}

#[test]
fn a_heap_control_tells_what_it_allocates_and_where() {
    let call = cmd::<Heap>(ESC_RM_VID_HEAP_CONTROL);
    for function in [HEAP_ALLOC_SIZE, HEAP_ALLOC_RANGE, HEAP_ALLOC_PITCH] {
        let layout = HeapLayout::of(function).unwrap();
        let with = |flags: u32, attr: u32, attr2: u32| {
            let mut heap = bytes(&head(function));
            put_word(&mut heap, HeapLayout::MEMORY, 7);
            put_word(&mut heap, HeapLayout::FLAGS, flags);
            put_word(&mut heap, layout.attr2, attr2);
            crate::bytes::put_long(&mut heap, layout.size, 300);
            if function == HEAP_ALLOC_PITCH {
                let (height, pitch) = HeapLayout::HEIGHT_AND_PITCH;
                put_word(&mut heap, height, 1000);
                put_word(&mut heap, pitch, 4096);
            }
            put_word(&mut heap, layout.attr, attr);
            assert_eq!(object_of(call, &heap), Some(Object(7)));
            match parse(call, &heap).unwrap() {
                Call::Heap(HeapCall {
                    client: Client(1),
                    device: Object(2),
                    function: HeapFunction::Alloc { object, memory },
                }) => (object, memory),
                other => panic!("{other:?}"),
            }
        };
        let (object, memory) = with(0, 0, 0);
        assert_eq!(object, Object(0), "the driver picks");
        let wanted = if function == HEAP_ALLOC_PITCH {
            4_096_000
        } else {
            300
        };
        assert_eq!((memory.wanted, memory.held()), (wanted, 300));
        assert_eq!(memory.bytes(), wanted.next_multiple_of(2 << 20));
        assert_eq!(with(MemoryParams::HANDLE_PROVIDED, 0, 0).0, Object(7));
        for (flags, attr, attr2) in [
            (MemoryParams::VIRTUAL, 0, 0),
            (0, 1 << 25, 0),
            (0, 0, MemoryParams::EXTENDED),
        ] {
            let memory = with(flags, attr, attr2).1;
            assert_eq!((memory.bytes(), memory.held()), (0, 0));
        }
    }
}

#[test]
fn what_is_not_done_for_others_is_refused_before_any_call() {
    let null = File::open("/dev/null").unwrap();
    let refused = |cmd: u32, argument: &[u8], params: Option<&mut [u8]>| {
        let mut copy = argument.to_vec();
        let error = perform(null.as_fd(), cmd, &mut copy, params).unwrap_err();
        assert_eq!(copy, argument, "as it was");
        error.kind() == io::ErrorKind::InvalidInput
    };
    let (alloc, control) = (
        cmd::<Alloc>(ESC_RM_ALLOC),
        cmd::<ControlArgs>(ESC_RM_CONTROL),
    );
    let memory = Alloc {
        class: 0x40,
        ..Alloc::default()
    };
    let params = &mut [0; MEMORY_PARAMS];
    assert!(
        !refused(alloc, &bytes(&memory), Some(params)),
        "it was asked"
    );
    assert!(refused(alloc, &bytes(&memory), None));
    assert!(refused(alloc, &bytes(&memory), Some(&mut params[1..])));
    for class in [0, 0x41, 0x3E, 0x71, 0x80, 0xC2] {
        let other = Alloc { class, ..memory };
        assert!(refused(alloc, &bytes(&other), Some(params)));
    }
    let rights = Alloc {
        rights: 1,
        ..memory
    };
    assert!(refused(alloc, &bytes(&rights), Some(params)));
    let flags = Alloc { flags: 1, ..memory };
    assert!(refused(alloc, &bytes(&flags), Some(params)));

    let pids = ControlArgs {
        cmd: 0x2080_018D,
        params_size: 3812,
        ..ControlArgs::default()
    };
    let params = &mut vec![0; 3813];
    assert!(!refused(control, &bytes(&pids), Some(&mut params[..3812])));
    assert!(refused(control, &bytes(&pids), Some(params)));
    let flags = ControlArgs { flags: 4, ..pids };
    assert!(refused(control, &bytes(&flags), Some(&mut params[..3812])));
    let other = ControlArgs {
        cmd: 0x2080_110B,
        ..pids
    };
    assert!(refused(control, &bytes(&other), Some(&mut params[..3812])));

    // A list behind its parameters, of as many entries as they say.
    let list = ControlArgs {
        cmd: crate::abi::memory::MEMORY_INFO_LIST,
        params_size: 16,
        ..ControlArgs::default()
    };
    let mut params = vec![0; 16 + 3 * 8];
    put_word(&mut params, 0, 3);
    params[8] = 0x55;
    assert!(!refused(control, &bytes(&list), Some(&mut params)));
    for count in [0, 2, 4, u32::MAX] {
        put_word(&mut params, 0, count);
        assert!(refused(control, &bytes(&list), Some(&mut params)));
    }

    let heap = cmd::<Heap>(ESC_RM_VID_HEAP_CONTROL);
    assert!(!refused(heap, &bytes(&head(HEAP_ALLOC_SIZE)), None));
    for function in [15, 19, 27] {
        assert!(refused(heap, &bytes(&head(function)), None));
    }
    let old = OldAlloc {
        class: 0x71,
        ..OldAlloc::default()
    };
    let call = cmd::<OldAlloc>(ESC_RM_ALLOC_MEMORY);
    assert!(refused(call, &bytes(&old), None));
    assert!(refused(cmd_of_wrapper(), &bytes(&Wrapper::default()), None));
    assert!(refused(0, &[], None));
}

proptest! {
    #[test]
    fn what_was_sent_is_read(a: [u32; 9], long in any::<(u64, u64)>()) {
        let sent = Alloc {
            root: a[0], parent: a[1], new: a[2], class: a[3], params: long.0, rights: long.1,
            params_size: a[4], flags: a[5], status: a[6], pad: 0,
        };
        let call = cmd::<Alloc>(ESC_RM_ALLOC);
        let read = AllocCall {
            client: Client(a[0]), parent: Object(a[1]), object: Object(a[2]), class: a[3],
            params_at: long.0, params_size: a[4], rights_at: long.1, flags: a[5],
            form: AllocForm::WithRights,
        };
        prop_assert_eq!(parse(call, &bytes(&sent)), Ok(Call::Alloc(read)));
        prop_assert_eq!(status_of(call, &bytes(&sent)), Some(Status(a[6])));
        prop_assert_eq!(object_of(call, &bytes(&sent)), Some(Object(a[2])));

        let short = AllocShort {
            root: a[0], parent: a[1], new: a[2], class: a[3], params: long.0, params_size: a[4],
            status: a[6],
        };
        let call = cmd::<AllocShort>(ESC_RM_ALLOC);
        let read = AllocCall { rights_at: 0, flags: 0, form: AllocForm::Short, ..read };
        prop_assert_eq!(parse(call, &bytes(&short)), Ok(Call::Alloc(read)));
        prop_assert_eq!(status_of(call, &bytes(&short)), Some(Status(a[6])));

        let sent = Free { root: a[0], parent: a[1], old: a[2], status: a[6] };
        let call = cmd::<Free>(ESC_RM_FREE);
        let read = FreeCall { client: Client(a[0]), parent: Object(a[1]), object: Object(a[2]) };
        prop_assert_eq!(parse(call, &bytes(&sent)), Ok(Call::Free(read)));
        prop_assert_eq!(object_of(call, &bytes(&sent)), None);

        let sent = Dup {
            client: a[0], parent: a[1], object: a[2], from_client: a[3], from_object: a[4],
            flags: a[5], status: a[6],
        };
        let call = cmd::<Dup>(ESC_RM_DUP_OBJECT);
        let read = DupCall {
            client: Client(a[0]), parent: Object(a[1]), object: Object(a[2]),
            from_client: Client(a[3]), from_object: Object(a[4]), flags: a[5],
        };
        prop_assert_eq!(parse(call, &bytes(&sent)), Ok(Call::Dup(read)));
        prop_assert_eq!(status_of(call, &bytes(&sent)), Some(Status(a[6])));

        let sent = ControlArgs {
            client: a[0], object: a[1], cmd: a[2], flags: a[5], params: long.0, params_size: a[4],
            status: a[6],
        };
        let call = cmd::<ControlArgs>(ESC_RM_CONTROL);
        let read = ControlCall {
            client: Client(a[0]), object: Object(a[1]), cmd: a[2], flags: a[5], params_at: long.0,
            params_size: a[4],
        };
        prop_assert_eq!(parse(call, &bytes(&sent)), Ok(Call::Control(read)));

        let sent = OldAlloc {
            root: a[0], parent: a[1], new: a[2], class: a[3], status: a[6], ..OldAlloc::default()
        };
        let call = cmd::<OldAlloc>(ESC_RM_ALLOC_MEMORY);
        let read = OldAllocCall {
            client: Client(a[0]), parent: Object(a[1]), object: Object(a[2]), class: a[3],
        };
        prop_assert_eq!(parse(call, &bytes(&sent)), Ok(Call::OldAlloc(read)));
        let mut answered = bytes(&sent);
        prop_assert!(set_status(call, &mut answered, Status(a[7])));
        prop_assert_eq!(answered, bytes(&OldAlloc { status: a[7], ..sent }));
    }

    #[test]
    fn no_bytes_are_too_odd(
        cmd: u32,
        number in proptest::sample::select(NUMBERS),
        argument in proptest::collection::vec(any::<u8>(), 0..200),
    ) {
        let null = File::open("/dev/null").unwrap();
        let with_size = iowr(number, argument.len()) as u32;
        for cmd in [cmd, with_size] {
            let mut argument = argument.clone();
            let call = parse(cmd, &argument);
            prop_assert_eq!(
                call.is_ok(),
                argument_size(cmd) == Some(argument.len())
            );
            let _ = (status_of(cmd, &argument), object_of(cmd, &argument));
            prop_assert!(perform(null.as_fd(), cmd, &mut argument, None).is_err());
            let mut params = vec![1; MEMORY_PARAMS];
            prop_assert!(perform(null.as_fd(), cmd, &mut argument, Some(&mut params)).is_err());
            set_status(cmd, &mut argument, Status::NO_MEMORY);
        }
        let memory = device_memory(&argument);
        prop_assert_eq!(memory.is_ok(), argument.len() >= 120);
        prop_assert!(memory.is_ok_and(|m| m.bytes() >= m.held() || !m.on_device) || memory.is_err());
    }
}
