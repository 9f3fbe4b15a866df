//! Nodes of graphs that are not simply a row of the table.

use super::commands::{DONE, Done, Session};
use super::work::Arguments;
use crate::calls;
use crate::driver::{BoxCopy, HostNode, KernelNode};
use crate::kinds::Fault;
use ghost_wire::message::{AddCopyNode, AddHostNode, AddKernelNode, Config, SetExecKernel};
use ghost_wire::result::{Code, NOT_SUPPORTED};
use ghost_wire::{Decoder, Id, Malformed, Object};
use std::ffi::c_void;
use std::ptr::null_mut;

impl Session {
    fn after(&self, bytes: &[u8]) -> Result<Vec<u64>, Fault> {
        if !bytes.len().is_multiple_of(8) {
            return Err(Malformed::Left(bytes.len() % 8).into());
        }
        let mut from = Decoder::new(bytes);
        let words = (0..bytes.len() / 8).map(|_| from.word());
        let ids: Vec<u64> = words.collect::<Result<_, _>>()?;
        let raws = ids
            .into_iter()
            .map(|id| self.handles.get(Object::GraphNode, id));
        Ok(raws.collect::<Result<_, Code>>()?)
    }

    /// The node's parameters and the arguments that they lead to.
    fn kernel_node(
        &self,
        function: u64,
        config: &Config<'_>,
        params: &[u8],
    ) -> Result<(KernelNode, Arguments), Fault> {
        if !config.attributes.is_empty() {
            return Err(NOT_SUPPORTED.into());
        }
        let (raw, layout) = self.handles.function(function)?;
        let mut arguments = Arguments::new(layout, params)?;
        let kernel = Id::from_raw(function).and_then(Id::object) == Some(Object::Kernel);
        let (function, kernel) = if kernel { (0, raw) } else { (raw, 0) };
        let node = KernelNode {
            function,
            kernel,
            grid: config.grid,
            block: config.block,
            shared: config.shared,
            params: arguments.raw(),
            extra: null_mut(),
            context: 0,
        };
        Ok((node, arguments))
    }

    pub(super) fn add_kernel_node(&mut self, message: &AddKernelNode<'_>) -> Result<Done, Fault> {
        let graph = self.handles.get(Object::Graph, message.graph)?;
        let after = self.after(message.after)?;
        let (params, _arguments) =
            self.kernel_node(message.function, &message.config, message.params)?;
        let mut raw = 0;
        let driver = &self.shared.driver;
        // SAFETY: all pointers lead into what is held until after the call.
        unsafe {
            driver.cuGraphAddKernelNode_v2(&mut raw, graph, after.as_ptr(), after.len(), &params)
        }?;
        let context = self.context;
        self.handles
            .insert(Object::GraphNode, message.node, raw, context)?;
        DONE
    }

    pub(super) fn set_exec_kernel(&mut self, message: &SetExecKernel<'_>) -> Result<Done, Fault> {
        let exec = self.handles.get(Object::GraphExec, message.exec)?;
        let node = self.handles.get(Object::GraphNode, message.node)?;
        let (params, _arguments) =
            self.kernel_node(message.function, &message.config, message.params)?;
        let driver = &self.shared.driver;
        // SAFETY: as above.
        unsafe { driver.cuGraphExecKernelNodeSetParams_v2(exec, node, &params) }?;
        DONE
    }

    pub(super) fn add_copy_node(&mut self, message: &AddCopyNode<'_>) -> Result<Done, Fault> {
        let graph = self.handles.get(Object::Graph, message.graph)?;
        let after = self.after(message.after)?;
        let extent = message.extent;
        let copy = BoxCopy {
            from: self.end(&message.from, extent)?,
            to: self.end(&message.to, extent)?,
            extent,
        };
        if copy.from.host_end() || copy.to.host_end() {
            return Err(NOT_SUPPORTED.into());
        }
        let context = self.handles.get(Object::Context, message.context)?;
        let mut raw = 0;
        let driver = &self.shared.driver;
        // SAFETY: both ends are the device's; the list is as long as it says.
        unsafe {
            let (list, count) = (after.as_ptr(), after.len());
            driver.cuGraphAddMemcpyNode(&mut raw, graph, list, count, &copy, context)
        }?;
        let context = self.context;
        self.handles
            .insert(Object::GraphNode, message.node, raw, context)?;
        DONE
    }

    pub(super) fn add_host_node(&mut self, message: &AddHostNode<'_>) -> Result<Done, Fault> {
        let graph = self.handles.get(Object::Graph, message.graph)?;
        let after = self.after(message.after)?;
        let params = HostNode {
            function: calls::host,
            data: message.token as *mut c_void,
        };
        let mut raw = 0;
        let driver = &self.shared.driver;
        // SAFETY: the data is a number to the function, never followed.
        unsafe {
            driver.cuGraphAddHostNode(&mut raw, graph, after.as_ptr(), after.len(), &params)
        }?;
        let context = self.context;
        self.handles
            .insert(Object::GraphNode, message.node, raw, context)?;
        DONE
    }
}
