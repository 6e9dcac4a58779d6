//! MPI's rules for attributes.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::error::TypeError;
use crate::primitive::Primitive;

fn datatype() -> Datatype {
    Datatype::contiguous(2, &Primitive::Int.into()).unwrap()
}

fn number(t: &Datatype, key: &Key) -> Option<u32> {
    t.attribute(key).map(|value| *value.downcast_ref().unwrap())
}

/// A key that counts what its delete callback is given.
fn counting(copy: CopyRule) -> (Key, Arc<AtomicUsize>) {
    let deleted = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&deleted);
    let key = Key::with_delete(copy, move |_, _| {
        seen.fetch_add(1, Ordering::Relaxed);
        Ok(())
    });
    (key, deleted)
}

#[test]
fn set_get_delete() {
    let (t, key, other) = (datatype(), Key::new(CopyRule::Null), Key::new(CopyRule::Null));
    assert_eq!(number(&t, &key), None);
    t.set_attribute(&key, Arc::new(7_u32)).unwrap();
    assert_eq!(number(&t.clone(), &key), Some(7), "clones are the same object");
    assert_eq!(number(&t, &other), None);
    t.set_attribute(&key, Arc::new(8_u32)).unwrap();
    assert_eq!(number(&t, &key), Some(8));
    t.delete_attribute(&key).unwrap();
    assert_eq!(number(&t, &key), None);
    assert_eq!(t.delete_attribute(&key), Err(AttributeError::NotSet));
}

#[test]
fn dup_copies_by_rule() {
    let t = datatype();
    let null = Key::new(CopyRule::default());
    let dup = Key::new(CopyRule::Dup);
    let plus_one = Key::new(CopyRule::With(Arc::new(|_, _, value: &Value| {
        let old: u32 = *value.downcast_ref().unwrap();
        Ok((old != 0).then(|| Arc::new(old + 1) as Value))
    })));
    for key in [&null, &dup, &plus_one] {
        t.set_attribute(key, Arc::new(1_u32)).unwrap();
    }
    let copy = t.dup().unwrap();
    assert_eq!(number(&copy, &null), None);
    assert_eq!(number(&copy, &dup), Some(1));
    assert_eq!(number(&copy, &plus_one), Some(2));
    t.set_attribute(&plus_one, Arc::new(0_u32)).unwrap();
    assert_eq!(number(&t.dup().unwrap(), &plus_one), None);
    let built = Datatype::contiguous(1, &t).unwrap();
    assert_eq!(number(&built, &dup), None, "only dup copies");
}

#[test]
fn a_refused_copy_fails_dup_and_undoes_the_others() {
    let t = datatype();
    let (first, deleted) = counting(CopyRule::Dup);
    let refusal = AttributeError::Refused("not today".into());
    let refusing = Key::new(CopyRule::With({
        let refusal = refusal.clone();
        Arc::new(move |_, _, _| Err(refusal.clone()))
    }));
    t.set_attribute(&first, Arc::new(1_u32)).unwrap();
    t.set_attribute(&refusing, Arc::new(2_u32)).unwrap();
    assert_eq!(t.dup().unwrap_err(), TypeError::Attribute(refusal));
    assert_eq!(deleted.load(Ordering::Relaxed), 1, "the copy, not the original");
    assert_eq!(number(&t, &first), Some(1));
}

#[test]
fn every_value_is_deleted_once() {
    let (key, deleted) = counting(CopyRule::Dup);
    let count = || deleted.load(Ordering::Relaxed);
    let t = datatype();
    t.set_attribute(&key, Arc::new(1_u32)).unwrap();
    t.set_attribute(&key, Arc::new(2_u32)).unwrap();
    assert_eq!(count(), 1, "overwritten");
    t.delete_attribute(&key).unwrap();
    assert_eq!(count(), 2, "deleted");
    t.set_attribute(&key, Arc::new(3_u32)).unwrap();
    let (copy, clone) = (t.dup().unwrap(), t.clone());
    drop(t);
    drop(clone);
    assert_eq!(count(), 2, "the duplicate is made of it, so it is still there");
    drop(copy);
    assert_eq!(count(), 4, "last handles dropped");
}

#[test]
fn a_refused_delete_keeps_the_attribute() {
    let t = datatype();
    let refusal = AttributeError::Refused("in use".into());
    let key = Key::with_delete(CopyRule::Null, {
        let refusal = refusal.clone();
        move |_, _| Err(refusal.clone())
    });
    t.set_attribute(&key, Arc::new(1_u32)).unwrap();
    assert_eq!(t.set_attribute(&key, Arc::new(2_u32)), Err(refusal.clone()));
    assert_eq!(t.delete_attribute(&key), Err(refusal));
    assert_eq!(number(&t, &key), Some(1));
}

#[test]
fn callbacks_may_use_attributes() {
    let t = datatype();
    let (inner, _) = counting(CopyRule::Null);
    let probe = inner.clone();
    let key = Key::new(CopyRule::With(Arc::new(move |old, _, _| Ok(old.attribute(&probe)))));
    t.set_attribute(&inner, Arc::new(5_u32)).unwrap();
    t.set_attribute(&key, Arc::new(6_u32)).unwrap();
    assert_eq!(number(&t.dup().unwrap(), &key), Some(5));
}
