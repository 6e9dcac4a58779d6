//! Attributes: opaque values that a library caches on a datatype (MPI 4.1 §7.7).
//!
//! A [`Key`] names an attribute and says what happens to it when its datatype is duplicated and
//! when it goes away. This crate never looks at a value. Attributes belong to the object, not the
//! handle: clones of a [`Datatype`] see the same ones.
//!
//! Callbacks run outside the lock, so they may use attributes themselves. Each value set is handed
//! to the delete callback exactly once, when it is overwritten, deleted, or when the datatype's last
//! handle is dropped; predefined types live as long as the process, their attributes too.

mod memory;

pub use memory::MemoryKind;

use std::any::Any;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::datatype::Datatype;

/// An attribute's value: anything, shared.
pub type Value = Arc<dyn Any + Send + Sync>;

/// Copy callback: given the old datatype, the key and the value, what the duplicate gets; `None`
/// if it gets nothing.
pub type CopyFn =
    dyn Fn(&Datatype, &Key, &Value) -> Result<Option<Value>, AttributeError> + Send + Sync;

/// Delete callback: given the key and the value that goes away. An error keeps the attribute in
/// place, except when the datatype itself goes away.
pub type DeleteFn = dyn Fn(&Key, &Value) -> Result<(), AttributeError> + Send + Sync;

/// What becomes of an attribute when its datatype is duplicated.
#[derive(Clone, Default)]
pub enum CopyRule {
    /// The duplicate does not get it (`MPI_TYPE_NULL_COPY_FN`).
    #[default]
    Null,
    /// The duplicate gets the same value (`MPI_TYPE_DUP_FN`).
    Dup,
    /// The callback decides.
    With(Arc<CopyFn>),
}

impl fmt::Debug for CopyRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            CopyRule::Null => "Null",
            CopyRule::Dup => "Dup",
            CopyRule::With(_) => "With(..)",
        })
    }
}

/// Names an attribute (`MPI_Type_create_keyval`). Clones are the same key.
///
/// ```
/// use std::sync::Arc;
///
/// use gapless_dtype::{CopyRule, Datatype, Key, Primitive};
///
/// let label = Key::new(CopyRule::Dup);
/// let row = Datatype::contiguous(8, &Primitive::Double.into())?;
/// row.set_attribute(&label, Arc::new("row"))?;
/// let copy = row.dup()?;
/// assert_eq!(copy.attribute(&label).unwrap().downcast_ref(), Some(&"row"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Key(Arc<Rules>);

struct Rules {
    copy: CopyRule,
    delete: Option<Box<DeleteFn>>,
}

impl Key {
    /// A new key, different from every other one.
    pub fn new(copy: CopyRule) -> Key {
        Key(Arc::new(Rules { copy, delete: None }))
    }

    /// A new key whose values are handed to `delete` when they go away.
    pub fn with_delete(
        copy: CopyRule,
        delete: impl Fn(&Key, &Value) -> Result<(), AttributeError> + Send + Sync + 'static,
    ) -> Key {
        let delete = Some(Box::new(delete) as Box<DeleteFn>);
        Key(Arc::new(Rules { copy, delete }))
    }

    fn copy(&self, old: &Datatype, value: &Value) -> Result<Option<Value>, AttributeError> {
        match &self.0.copy {
            CopyRule::Null => Ok(None),
            CopyRule::Dup => Ok(Some(Arc::clone(value))),
            CopyRule::With(callback) => callback(old, self, value),
        }
    }

    fn delete(&self, value: &Value) -> Result<(), AttributeError> {
        match &self.0.delete {
            None => Ok(()),
            Some(callback) => callback(self, value),
        }
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Key) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Key {}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Key").field(&Arc::as_ptr(&self.0)).finish()
    }
}

/// Why an attribute could not be copied or deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AttributeError {
    /// A callback refused, for this reason.
    Refused(String),
    /// The datatype has no attribute with this key.
    NotSet,
}

impl fmt::Display for AttributeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(what) => write!(f, "the attribute's callback refused: {what}"),
            Self::NotSet => f.write_str("the datatype has no attribute with this key"),
        }
    }
}

impl std::error::Error for AttributeError {}

impl Datatype {
    /// Sets an attribute (`MPI_Type_set_attr`); a value set before goes to the delete callback
    /// first.
    ///
    /// # Errors
    ///
    /// [`AttributeError::Refused`] if the delete callback fails; the old value then stays.
    pub fn set_attribute(&self, key: &Key, value: Value) -> Result<(), AttributeError> {
        let attributes = self.attributes();
        // Another thread may set the same key between the two steps: then delete again.
        let mut value = Some(value);
        while let Some(new) = value.take() {
            attributes.remove(key)?;
            value = attributes.insert_if_vacant(key, new);
        }
        Ok(())
    }

    /// The attribute's value, if it is set (`MPI_Type_get_attr`).
    pub fn attribute(&self, key: &Key) -> Option<Value> {
        let entries = self.attributes().lock();
        let found = entries.iter().find(|(k, _)| k == key);
        found.map(|(_, value)| Arc::clone(value))
    }

    /// Deletes an attribute (`MPI_Type_delete_attr`) after its delete callback has run.
    ///
    /// # Errors
    ///
    /// [`AttributeError::NotSet`] if there is none; [`AttributeError::Refused`] if the callback
    /// fails, and the attribute stays.
    pub fn delete_attribute(&self, key: &Key) -> Result<(), AttributeError> {
        match self.attributes().remove(key)? {
            true => Ok(()),
            false => Err(AttributeError::NotSet),
        }
    }
}

/// A datatype's attributes, in the order they were set.
#[derive(Default)]
pub(crate) struct Attributes(Mutex<Vec<(Key, Value)>>);

impl Attributes {
    /// What `old`'s duplicate gets of its attributes.
    pub(crate) fn copied_from(&self, old: &Datatype) -> Result<Attributes, AttributeError> {
        let entries = self.lock().clone();
        let copied = Attributes::default();
        for (key, value) in entries {
            // On an error `copied` is dropped, which deletes what it has so far.
            if let Some(value) = key.copy(old, &value)? {
                copied.lock().push((key, value));
            }
        }
        Ok(copied)
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(Key, Value)>> {
        // The list is whole between any two statements that hold the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the entry out and hands it to the delete callback; puts it back if that refuses.
    /// Returns whether there was one.
    fn remove(&self, key: &Key) -> Result<bool, AttributeError> {
        let taken = {
            let mut entries = self.lock();
            let place = entries.iter().position(|(k, _)| k == key);
            place.map(|place| entries.remove(place).1)
        };
        let Some(value) = taken else {
            return Ok(false);
        };
        if let Err(refused) = key.delete(&value) {
            // If another thread has set the key meanwhile, its value is the newer one.
            self.insert_if_vacant(key, value);
            return Err(refused);
        }
        Ok(true)
    }

    /// Sets the attribute, or gives the value back if the key is taken.
    fn insert_if_vacant(&self, key: &Key, value: Value) -> Option<Value> {
        let mut entries = self.lock();
        if entries.iter().any(|(k, _)| k == key) {
            return Some(value);
        }
        entries.push((key.clone(), value));
        None
    }
}

impl Drop for Attributes {
    fn drop(&mut self) {
        let entries = self.0.get_mut().unwrap_or_else(PoisonError::into_inner);
        for (key, value) in std::mem::take(entries) {
            // Nobody is left to hear of a refusal.
            let _ = key.delete(&value);
        }
    }
}

#[cfg(test)]
mod tests;
