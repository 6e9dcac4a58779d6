//! The kind of memory that buffers of a datatype lie in. A datatype says it, and `commit` freezes it into the layout,
//! so that a pointer without a type may be a device's (Aji 2012, MPI-ACC, §II.C).

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::build::Recipe;
use crate::datatype::Datatype;
use crate::error::{Argument, TypeError};

/// A label for the kind of memory that buffers of a datatype lie in. This crate keeps it and does not interpret it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MemoryKind(pub [u64; 4]);

/// Whether any datatype of this process says one: types need not be searched as long as none has.
static USED: AtomicBool = AtomicBool::new(false);

impl Datatype {
    /// A duplicate whose buffers lie in memory of this kind: an accelerator variant of it. Types that are made of the
    /// duplicate are of this kind, too, unless they are duplicated in another. Layouts that were committed before stay
    /// as they are.
    ///
    /// # Errors
    /// The tree gets too deep.
    pub fn in_memory(&self, kind: MemoryKind) -> Result<Datatype, TypeError> {
        USED.store(true, Ordering::Release);
        let (recipe, blame) = (Recipe::Dup { old: self.clone() }, Argument::whole("old"));
        Datatype::in_kind(recipe, self.size(), self.bounds(), blame, Some(kind))
    }

    /// The kind of memory of the type, or of the types that it is made of; `None` if none of them says.
    ///
    /// # Errors
    /// [`TypeError::MemoryKinds`] if they say different things.
    pub fn memory_kind(&self) -> Result<Option<MemoryKind>, TypeError> {
        if !USED.load(Ordering::Acquire) {
            return Ok(None);
        }
        let (mut left, mut seen, mut found) = (vec![self], HashSet::new(), None);
        while let Some(datatype) = left.pop() {
            if !seen.insert(datatype) {
                continue;
            }
            let Some(kind) = datatype.own_memory_kind() else {
                left.extend(datatype.contents().types());
                continue;
            };
            if found.is_some_and(|found| found != kind) {
                return Err(TypeError::MemoryKinds { constructor: self.contents().combiner() });
            }
            found = Some(kind);
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Primitive;

    #[test]
    fn the_kind_is_that_of_the_parts_and_frozen_when_the_type_is_committed() {
        let (here, there) = (MemoryKind([1, 0, 0, 0]), MemoryKind([2, 7, 0, 0]));
        let plain = Datatype::from(Primitive::Double);
        let device = plain.in_memory(there).unwrap();
        assert_eq!(plain.memory_kind().unwrap(), None);
        assert_eq!(plain.commit().unwrap().memory_kind(), None);
        let rows = Datatype::vector(4, 2, 8, &device).unwrap();
        let layout = rows.commit().unwrap();
        assert_eq!(layout.memory_kind(), Some(there));
        assert_eq!(rows.dup().unwrap().memory_kind().unwrap(), Some(there));
        // The nearest one that says something counts.
        let moved = rows.in_memory(here).unwrap();
        assert_eq!(moved.commit().unwrap().memory_kind(), Some(here));
        assert_eq!(layout.memory_kind(), Some(there));
        // What says nothing lies where the rest does.
        let both = |second: &Datatype| {
            Datatype::structure(&[1, 1], &[0, 64], &[device.clone(), second.clone()]).unwrap()
        };
        assert_eq!(both(&plain).commit().unwrap().memory_kind(), Some(there));
        let mixed = both(&moved);
        assert!(
            matches!(mixed.commit(), Err(TypeError::MemoryKinds { .. })),
            "{:?}",
            mixed.commit()
        );
    }

    #[test]
    fn parts_that_are_used_often_are_searched_once() {
        let mut datatype =
            Datatype::from(Primitive::Byte).in_memory(MemoryKind([3, 0, 0, 0])).unwrap();
        for _ in 0..16 {
            let types = [datatype.clone(), datatype.clone()];
            datatype = Datatype::structure(&[1, 1], &[0, 0], &types).unwrap();
        }
        assert_eq!(datatype.memory_kind().unwrap(), Some(MemoryKind([3, 0, 0, 0])));
    }
}
