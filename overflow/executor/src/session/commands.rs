//! Commands, carried out one after the other. Nothing here waits for the device.

use super::Shared;
use super::contexts::PrimaryContext;
use super::incoming::{Part, Queue, split};
use super::loads::Image;
use crate::dispatch;
use crate::handles::Handles;
use crate::images::Images;
use crate::kinds::{Call, Fault};
use crate::nvml::Nvml;
use ghost_wire::api::op;
use ghost_wire::frame::Command;
use ghost_wire::message::{self, *};
use ghost_wire::result::{Code, STREAM_CAPTURE_UNSUPPORTED, SUCCESS};
use ghost_wire::stats::Counter;
use ghost_wire::{Encoder, Malformed, Object, Op};
use std::cell::OnceCell;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::Receiver;

/// What became of a command.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Done {
    /// It succeeded; the answer's body.
    Answer(Vec<u8>),
    /// It failed, with a body all the same.
    Failed(Code, Vec<u8>),
    /// Someone else answers.
    Later,
}

/// No body.
pub(super) const DONE: Result<Done, Fault> = Ok(Done::Answer(Vec::new()));

/// Words as a body.
pub(super) fn words(all: &[u64]) -> Vec<u8> {
    all.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// A number that is none of those that a field takes.
pub(super) fn range(what: &'static str, value: impl Into<u64>) -> Fault {
    let value = value.into();
    Malformed::Range { what, value }.into()
}

/// The command that is carried out.
#[derive(Debug, Clone, Copy)]
pub(super) struct Now {
    pub(super) op: Op,
    pub(super) seq: u64,
    pub(super) waited: bool,
}

/// What the commands of a session work on.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) shared: Arc<Shared>,
    pub(super) handles: Handles,
    pub(super) images: Images,
    /// Modules and libraries, by id.
    pub(super) loaded: HashMap<u64, Image>,
    /// Bulk data.
    pub(super) bulk: Receiver<Part>,
    /// The context that the client named last.
    pub(super) named: u64,
    /// The driver's handle of it; 0 while there is none.
    pub(super) context: u64,
    /// Each device's primary context.
    pub(super) primaries: HashMap<i32, PrimaryContext>,
    /// A device whose primary context is retained for libraries, and that context.
    pub(super) lent: Option<(i32, u64)>,
    /// Captures that have begun and not ended.
    captures: usize,
    /// The host's NVML, once it was asked for.
    pub(super) nvml: OnceCell<Option<Nvml>>,
}

impl Session {
    pub(super) fn new(shared: Arc<Shared>, images: Images, bulk: Receiver<Part>) -> Self {
        Self {
            shared,
            handles: Handles::default(),
            images,
            loaded: HashMap::new(),
            bulk,
            named: 0,
            context: 0,
            primaries: HashMap::new(),
            lent: None,
            captures: 0,
            nvml: OnceCell::new(),
        }
    }

    /// Carries out what comes until the client is done; says why if it ends otherwise.
    pub(super) fn run(mut self, queue: &Queue) -> Option<String> {
        let mut seq = 0;
        loop {
            let batch = queue.pop();
            let mut rest = batch.as_slice();
            while let Ok(Some((command, body, after))) = split(rest) {
                rest = after;
                seq += 1;
                if command.op == Bye::OP {
                    return None;
                }
                if let Err(why) = self.one(command, seq, body) {
                    let name = command.op.name();
                    return Some(format!("command {seq} ({name}): {why}"));
                }
            }
        }
    }

    /// Carries out one command and tells what came of it.
    fn one(&mut self, command: Command, seq: u64, body: &[u8]) -> Result<(), Fault> {
        let Command { op, waited, .. } = command;
        let link = Arc::clone(&self.shared.link);
        let counter = if waited {
            Counter::Waited
        } else {
            Counter::Posted
        };
        link.stats.count(counter, 1);
        let (code, body) = match self.carry_out(Now { op, seq, waited }, body) {
            Ok(Done::Later) => return Ok(()),
            Ok(Done::Answer(body)) => (SUCCESS, body),
            Ok(Done::Failed(code, body)) => (code, body),
            Err(Fault::Code(code)) => (code, Vec::new()),
            Err(fault) => return Err(fault),
        };
        if waited {
            link.answer(seq, code, &body);
        } else if code != SUCCESS {
            link.late(op, seq, code);
        }
        Ok(())
    }

    fn carry_out(&mut self, now: Now, body: &[u8]) -> Result<Done, Fault> {
        let of_contexts = matches!(
            now.op,
            Use::OP | Primary::OP | CreateContext::OP | DestroyContext::OP | CallbackDone::OP
        );
        if self.context == 0 && self.named != 0 && !of_contexts {
            self.retain_named();
        }
        if now.op < message::FIRST {
            return self.row(now.op, body);
        }
        match now.op {
            Use::OP => self.use_context(read::<Use>(body)?.context),
            Primary::OP => self.primary(read(body)?),
            CreateContext::OP => self.create_context(read(body)?),
            DestroyContext::OP => self.destroy_context(read(body)?),
            Launch::OP => self.launch(&read(body)?),
            CopyIn::OP => self.copy_in(now, &read(body)?),
            CopyOut::OP => self.copy_out(now, read(body)?),
            CopyBox::OP => self.copy_box(now, &read(body)?),
            Wait::OP => self.wait(now, read(body)?),
            HostCall::OP => self.host_call(read(body)?),
            // Handled when it was read.
            CallbackDone::OP => DONE,
            Load::OP => {
                let load: Load<'_> = read(body)?;
                self.for_image(load.id, |session| session.load(now, &load))
            }
            Unload::OP => self.unload(read(body)?),
            Name::OP => self.name(read(body)?),
            Resolve::OP => self.resolve(read(body)?),
            Share::OP => {
                let share = read(body)?;
                let at = self.shared.shares.add(&self.shared.driver, &share)?;
                Ok(Done::Answer(words(&[at])))
            }
            Variable::OP => {
                let variable: Variable<'_> = read(body)?;
                self.for_image(variable.of, |session| session.variable(&variable))
            }
            Unshare::OP => {
                let Unshare { at } = read(body)?;
                self.shared.shares.remove(&self.shared.driver, at)?;
                DONE
            }
            WriteShared::OP => {
                self.shared.shares.write(&read(body)?)?;
                DONE
            }
            CaptureInfo::OP => self.capture_info(read(body)?),
            AddKernelNode::OP => self.add_kernel_node(&read(body)?),
            SetExecKernel::OP => self.set_exec_kernel(&read(body)?),
            AddCopyNode::OP => self.add_copy_node(&read(body)?),
            AddHostNode::OP => self.add_host_node(&read(body)?),
            Monitor::OP => self.monitor(read(body)?),
            other => Err(Malformed::Op(other.0).into()),
        }
    }

    /// A row of the table.
    fn row(&mut self, number: Op, body: &[u8]) -> Result<Done, Fault> {
        let mut answer = Vec::new();
        let mut call = Call::new(&mut self.handles, self.context);
        let mut to = Encoder::new(&mut answer);
        let driver = Some(&self.shared.driver);
        let done = dispatch::run(driver, number, body, &mut call, &mut to);
        match number {
            op::cuStreamBeginCapture_v2 if done.is_ok() => self.captures += 1,
            op::cuStreamEndCapture => self.captures = self.captures.saturating_sub(1),
            _ => {}
        }
        done.map(|()| Done::Answer(answer))
    }

    /// The stream of a copy that has an end at the client: it can't be captured.
    pub(super) fn stream(&self, id: u64) -> Result<u64, Code> {
        let stream = self.handles.get(Object::Stream, id)?;
        if self.captures > 0 {
            let mut status = 0;
            let asked = self.shared.driver.cuStreamIsCapturing(stream, &mut status);
            if asked.is_ok() && status != 0 {
                return Err(STREAM_CAPTURE_UNSUPPORTED);
            }
        }
        Ok(stream)
    }

    /// The context that the events for work on a stream belong to.
    pub(super) fn context_of(&self, stream: u64) -> u64 {
        self.handles.owner(stream, self.context)
    }
}
