//! What a client sends to the executor.

use ghost_wire::frame::Command;
use ghost_wire::message::{self, *};
use ghost_wire::{Encoder, Op};

/// A stream of commands, each read as a session reads it, as far as that goes without a driver.
pub fn wire_command(data: &[u8]) {
    let mut rest = data;
    while let Some(header) = rest.first_chunk() {
        let Ok(command) = Command::from_bytes(*header) else {
            return;
        };
        assert_eq!(command.to_bytes(), *header);
        let len = Command::SIZE + command.len as usize;
        let Some((frame, after)) = rest.split_at_checked(len) else {
            return;
        };
        rest = after;
        let body = &frame[Command::SIZE..];
        if command.op < message::FIRST {
            // Any refusal is as good.
            let _ = ghost_executor::read(command.op, body);
        } else {
            one(command.op, body);
        }
    }
}

macro_rules! any {
    ($op:ident $body:ident: $($message:ident)*) => {
        match $op {
            $($message::OP => {
                let Ok(said) = message::read::<$message>($body) else { return };
                let mut again = Vec::new();
                said.put(&mut Encoder::new(&mut again));
                assert_eq!(message::read::<$message>(&again), Ok(said));
            })*
            _ => {}
        }
    };
}

fn one(op: Op, body: &[u8]) {
    any!(op body: Use Primary CreateContext DestroyContext Launch CopyIn CopyOut CopyBox Wait
        HostCall CallbackDone Load Unload Name Resolve Share Unshare WriteShared CaptureInfo
        AddKernelNode SetExecKernel AddCopyNode AddHostNode Monitor Bye);
}
