//! Ids of the wire and the driver's handles that they stand for.

use ghost_wire::id::{Maker, STREAM_LEGACY};
use ghost_wire::result::{Code, INVALID_CONTEXT, INVALID_HANDLE};
use ghost_wire::{Id, Object};
use std::collections::HashMap;
use std::sync::Arc;

/// Offset and size of each parameter of a function.
pub(crate) type Params = Arc<[(u32, u32)]>;

#[derive(Debug, Clone)]
struct Entry {
    raw: u64,
    /// The context that was current when it was made.
    owner: u64,
    /// Of functions and kernels.
    params: Option<Params>,
}

/// All handles of a session.
#[derive(Debug, Default)]
pub(crate) struct Handles {
    entries: HashMap<u64, Entry>,
    /// Ids by kind and the driver's handle.
    ids: HashMap<(Object, u64), u64>,
    /// Handles made on this side.
    made: u64,
}

impl Handles {
    /// The driver's handle of `id`, of this kind (a kernel may stand for a function). 0 is 0.
    ///
    /// # Errors
    /// The code for a call with an id that stands for nothing.
    #[inline]
    pub(crate) fn get(&self, object: Object, id: u64) -> Result<u64, Code> {
        if id == 0 || (object == Object::Stream && id == STREAM_LEGACY) {
            return Ok(id);
        }
        Ok(self.entry(object, id)?.raw)
    }

    fn entry(&self, object: Object, id: u64) -> Result<&Entry, Code> {
        let invalid = match object {
            Object::Context => INVALID_CONTEXT,
            _ => INVALID_HANDLE,
        };
        let is = Id::from_raw(id).and_then(Id::object).ok_or(invalid)?;
        let fits = is == object || (object == Object::Function && is == Object::Kernel);
        self.entries.get(&id).filter(|_| fits).ok_or(invalid)
    }

    /// A function or kernel and the layout of its parameters.
    ///
    /// # Errors
    /// As [`Handles::get`].
    #[inline]
    pub(crate) fn function(&self, id: u64) -> Result<(u64, Option<&Params>), Code> {
        let entry = self.entry(Object::Function, id)?;
        Ok((entry.raw, entry.params.as_ref()))
    }

    /// The context in which `id` was made, or `current` for what belongs to whichever is current.
    #[must_use]
    pub(crate) fn owner(&self, id: u64, current: u64) -> u64 {
        self.entries.get(&id).map_or(current, |entry| entry.owner)
    }

    /// `id` stands for `raw` from now on.
    ///
    /// # Errors
    /// For an id that is none, or of another kind.
    pub(crate) fn insert(
        &mut self,
        object: Object,
        id: u64,
        raw: u64,
        owner: u64,
    ) -> Result<(), Code> {
        self.insert_function(object, id, raw, owner, None)
    }

    /// As [`Handles::insert`], of a function or kernel with this layout.
    ///
    /// # Errors
    /// As [`Handles::insert`].
    pub(crate) fn insert_function(
        &mut self,
        object: Object,
        id: u64,
        raw: u64,
        owner: u64,
        params: Option<Params>,
    ) -> Result<(), Code> {
        if Id::from_raw(id).and_then(Id::object) != Some(object) {
            return Err(INVALID_HANDLE);
        }
        self.ids.insert((object, raw), id);
        self.entries.insert(id, Entry { raw, owner, params });
        Ok(())
    }

    /// The id of what the driver knows as `raw`, made if need be. 0 is 0.
    pub(crate) fn found(&mut self, object: Object, raw: u64, owner: u64) -> u64 {
        if raw == 0 {
            return 0;
        }
        if let Some(id) = self.ids.get(&(object, raw)) {
            return *id;
        }
        self.made += 1;
        let id = Id::new(Maker::Executor, object, self.made).raw();
        self.ids.insert((object, raw), id);
        let params = None;
        self.entries.insert(id, Entry { raw, owner, params });
        id
    }

    /// `id` stands for nothing any more.
    pub(crate) fn remove(&mut self, id: u64) {
        let object = Id::from_raw(id).and_then(Id::object);
        if let (Some(object), Some(entry)) = (object, self.entries.remove(&id)) {
            let key = (object, entry.raw);
            if self.ids.get(&key) == Some(&id) {
                self.ids.remove(&key);
            }
        }
    }

    /// Forgets what was made in a context that is gone, and the context.
    pub(crate) fn remove_context(&mut self, raw: u64) {
        let context = |id: u64| Id::from_raw(id).and_then(Id::object) == Some(Object::Context);
        self.entries.retain(|id, entry| {
            let gone = entry.owner == raw || (context(*id) && entry.raw == raw);
            !gone || Id::from_raw(*id).and_then(Id::object) == Some(Object::Library)
        });
        let entries = &self.entries;
        self.ids.retain(|_, id| entries.contains_key(id));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(object: Object, serial: u64) -> u64 {
        Id::new(Maker::Client, object, serial).raw()
    }

    #[test]
    fn an_id_stands_for_a_handle_of_its_kind_only() {
        let mut handles = Handles::default();
        let stream = id(Object::Stream, 1);
        assert_eq!(handles.insert(Object::Stream, stream, 77, 5), Ok(()));
        assert_eq!(handles.get(Object::Stream, stream), Ok(77));
        assert_eq!(handles.get(Object::Event, stream), Err(INVALID_HANDLE));
        assert_eq!(
            handles.get(Object::Stream, 0x7f00_1234_5678),
            Err(INVALID_HANDLE)
        );
        assert_eq!(
            handles.get(Object::Stream, STREAM_LEGACY),
            Ok(STREAM_LEGACY)
        );
        assert_eq!(
            handles.insert(Object::Event, stream, 1, 5),
            Err(INVALID_HANDLE)
        );
        let kernel = id(Object::Kernel, 2);
        assert_eq!(handles.insert(Object::Kernel, kernel, 78, 5), Ok(()));
        assert_eq!(handles.get(Object::Function, kernel), Ok(78));
        handles.remove(stream);
        assert_eq!(handles.get(Object::Stream, stream), Err(INVALID_HANDLE));
    }

    #[test]
    fn what_is_found_twice_has_one_id() {
        let mut handles = Handles::default();
        let node = handles.found(Object::GraphNode, 9, 5);
        assert_eq!(handles.found(Object::GraphNode, 9, 5), node);
        assert_eq!(handles.get(Object::GraphNode, node), Ok(9));
        assert_ne!(handles.found(Object::Graph, 9, 5), node);
        assert_eq!(handles.found(Object::Graph, 0, 5), 0);
    }

    #[test]
    fn what_belongs_to_a_context_goes_with_it() {
        let mut handles = Handles::default();
        let (context, stream, library) = (
            id(Object::Context, 1),
            id(Object::Stream, 2),
            id(Object::Library, 3),
        );
        assert_eq!(handles.insert(Object::Context, context, 5, 0), Ok(()));
        assert_eq!(handles.insert(Object::Stream, stream, 6, 5), Ok(()));
        assert_eq!(handles.insert(Object::Library, library, 7, 5), Ok(()));
        handles.remove_context(5);
        assert_eq!(handles.get(Object::Context, context), Err(INVALID_CONTEXT));
        assert_eq!(handles.get(Object::Stream, stream), Err(INVALID_HANDLE));
        assert_eq!(handles.get(Object::Library, library), Ok(7));
    }
}
