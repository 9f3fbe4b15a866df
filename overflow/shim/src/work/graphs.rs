//! Graphs: what has pointers of the program's in it.

use super::callbacks::of_graph;
use super::modules::callable;
use super::params::params;
use crate::context;
use crate::kinds::handle;
use crate::memory::{Copy3D, ends, tell};
use crate::session::link;
use crate::{answer, ids, sent, thread};
use ghost_wire::Object;
use ghost_wire::kind::{Graph, GraphExec, GraphNode, Handle, LIST_MAX};
use ghost_wire::message::{
    AddCopyNode, AddHostNode, AddKernelNode, Config, Field, Message, SetExecKernel,
};
use ghost_wire::result::{Code, INVALID_VALUE, SUCCESS};
use std::ffi::{c_char, c_void};

/// `CUDA_KERNEL_NODE_PARAMS_v2`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct KernelParams {
    function: u64,
    grid: [u32; 3],
    block: [u32; 3],
    shared: u32,
    each: *const *const u8,
    extra: *const *const c_void,
    kernel: u64,
    context: u64,
}

impl KernelParams {
    fn function(&self) -> u64 {
        match self.function {
            0 => self.kernel,
            function => function,
        }
    }

    fn config(&self) -> Config<'static> {
        Config {
            grid: self.grid,
            block: self.block,
            shared: self.shared,
            stream: 0,
            attributes: &[],
        }
    }
}

/// `CUDA_HOST_NODE_PARAMS`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct HostParams {
    function: Option<unsafe extern "C" fn(*mut c_void)>,
    data: *mut c_void,
}

/// Nodes that a new one depends on, a word each.
///
/// # Safety
/// `nodes` is null or has `count`.
unsafe fn after(nodes: *const u64, count: usize) -> Result<Vec<u8>, Code> {
    if count > LIST_MAX || (count > 0 && nodes.is_null()) {
        return Err(INVALID_VALUE);
    }
    let mut after = Vec::with_capacity(count * 8);
    for at in 0..count {
        // SAFETY: not null, and `count` of them.
        let node = unsafe { nodes.add(at).read_unaligned() };
        after.extend(handle::<GraphNode>(node, false)?.to_le_bytes());
    }
    Ok(after)
}

/// Reads what leads to a node's parameters.
///
/// # Safety
/// It is null or whole.
unsafe fn read<T: Copy>(from: *const T) -> Result<T, Code> {
    if from.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: not null, and whole by the contract.
    Ok(unsafe { from.read_unaligned() })
}

/// A handle that must be one.
fn real<T: Handle>(raw: u64) -> Result<u64, Code> {
    match handle::<T>(raw, false)? {
        0 => Err(INVALID_VALUE),
        handle => Ok(handle),
    }
}

pub(crate) unsafe extern "C" fn cuGraphAddKernelNode_v2(
    to: *mut u64,
    graph: u64,
    nodes: *const u64,
    count: usize,
    how: *const KernelParams,
) -> Code {
    let added = || {
        let link = link()?;
        // SAFETY: handed on.
        let (after, how) = unsafe { (after(nodes, count)?, read(how)?) };
        let graph = real::<Graph>(graph)?;
        if to.is_null() {
            return Err(INVALID_VALUE);
        }
        let callable = callable(how.function())?;
        // SAFETY: the program's arguments, as many as the layout has.
        let params = unsafe { params(callable.layout(), how.each, how.extra) }?;
        params.show();
        let node = ids::new(Object::GraphNode);
        // As `AddKernelNode` is encoded.
        link.wait(
            AddKernelNode::OP,
            |to| {
                graph.put(to);
                node.put(to);
                after.as_slice().put(to);
                how.function().put(to);
                how.config().put(to);
                params.put(to);
            },
            |_| Ok(()),
        )?;
        // SAFETY: not null, and the program's own room.
        unsafe { tell(to, node) }
    };
    answer(added())
}

pub(crate) unsafe extern "C" fn cuGraphExecKernelNodeSetParams_v2(
    exec: u64,
    node: u64,
    how: *const KernelParams,
) -> Code {
    let set = || {
        let link = link()?;
        // SAFETY: handed on.
        let how = unsafe { read(how) }?;
        let (exec, node) = (real::<GraphExec>(exec)?, real::<GraphNode>(node)?);
        let callable = callable(how.function())?;
        // SAFETY: the program's arguments, as many as the layout has.
        let params = unsafe { params(callable.layout(), how.each, how.extra) }?;
        params.show();
        // As `SetExecKernel` is encoded.
        link.wait(
            SetExecKernel::OP,
            |to| {
                exec.put(to);
                node.put(to);
                how.function().put(to);
                how.config().put(to);
                params.put(to);
            },
            |_| Ok(()),
        )
    };
    answer(set())
}

pub(crate) unsafe extern "C" fn cuGraphAddMemcpyNode(
    to: *mut u64,
    graph: u64,
    nodes: *const u64,
    count: usize,
    copy: *const Copy3D,
    context: u64,
) -> Code {
    let added = || {
        let link = link()?;
        // SAFETY: handed on.
        let (after, (from, end, extent)) = unsafe { (after(nodes, count)?, ends(copy)?) };
        if to.is_null() {
            return Err(INVALID_VALUE);
        }
        let message = AddCopyNode {
            graph: real::<Graph>(graph)?,
            node: ids::new(Object::GraphNode),
            after: &after,
            from,
            to: end,
            extent,
            context: match context {
                0 => thread::wire(),
                context => context::wire(context)?,
            },
        };
        link.wait(AddCopyNode::OP, |to| message.put(to), |_| Ok(()))?;
        // SAFETY: not null, and the program's own room.
        unsafe { tell(to, message.node) }
    };
    answer(added())
}

pub(crate) unsafe extern "C" fn cuGraphAddHostNode(
    to: *mut u64,
    graph: u64,
    nodes: *const u64,
    count: usize,
    how: *const HostParams,
) -> Code {
    let added = || {
        let link = link()?;
        // SAFETY: handed on.
        let (after, how) = unsafe { (after(nodes, count)?, read(how)?) };
        let function = how.function.ok_or(INVALID_VALUE)?;
        if to.is_null() {
            return Err(INVALID_VALUE);
        }
        let message = AddHostNode {
            graph: real::<Graph>(graph)?,
            node: ids::new(Object::GraphNode),
            after: &after,
            // SAFETY: the program gave it for a graph.
            token: unsafe { of_graph(function, how.data) },
        };
        link.wait(AddHostNode::OP, |to| message.put(to), |_| Ok(()))?;
        // SAFETY: not null, and the program's own room.
        unsafe { tell(to, message.node) }
    };
    answer(added())
}

/// `CUDA_GRAPH_INSTANTIATE_PARAMS`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct InstantiateParams {
    flags: u64,
    upload: u64,
    failed: u64,
    result: u32,
}

/// `CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD`.
const UPLOAD: u64 = 2;
/// `CUDA_GRAPH_INSTANTIATE_SUCCESS` and `_ERROR`.
const WELL: u32 = 0;
const FAILED: u32 = 1;

pub(crate) unsafe extern "C" fn cuGraphInstantiateWithParams<const PT: bool>(
    to: *mut u64,
    graph: u64,
    how: *mut InstantiateParams,
) -> Code {
    // SAFETY: null, or whole.
    let Ok(mut params) = (unsafe { read(how) }) else {
        return answer(link().and(Err(INVALID_VALUE)));
    };
    // SAFETY: handed on.
    let mut code = unsafe { sent::cuGraphInstantiateWithFlags(to, graph, params.flags & !UPLOAD) };
    if code == SUCCESS && params.flags & UPLOAD != 0 {
        // SAFETY: the call has written the handle there.
        code = unsafe { sent::cuGraphUpload::<PT>(to.read_unaligned(), params.upload) };
    }
    params.failed = 0;
    params.result = if code == SUCCESS { WELL } else { FAILED };
    // SAFETY: not null, and the program's own.
    unsafe { how.write_unaligned(params) };
    code
}

/// The forms of old, which told of a node that is at fault and why: no more than the code here.
///
/// # Safety
/// All are null or room for what they are.
unsafe fn instantiate(
    to: *mut u64,
    graph: u64,
    failed: *mut u64,
    log: *mut c_char,
    len: usize,
) -> Code {
    // SAFETY: handed on; the program's own room.
    unsafe {
        if !failed.is_null() {
            failed.write_unaligned(0);
        }
        if !log.is_null() && len > 0 {
            log.write(0);
        }
        sent::cuGraphInstantiateWithFlags(to, graph, 0)
    }
}

pub(crate) unsafe extern "C" fn cuGraphInstantiate(
    to: *mut u64,
    graph: u64,
    failed: *mut u64,
    log: *mut c_char,
    len: usize,
) -> Code {
    // SAFETY: handed on.
    unsafe { instantiate(to, graph, failed, log, len) }
}

pub(crate) unsafe extern "C" fn cuGraphInstantiate_v2(
    to: *mut u64,
    graph: u64,
    failed: *mut u64,
    log: *mut c_char,
    len: usize,
) -> Code {
    // SAFETY: handed on.
    unsafe { instantiate(to, graph, failed, log, len) }
}
