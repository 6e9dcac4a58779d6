//! What there is without the feature `ib`: the answer that there is nothing.

use super::ports::Port;
use super::{Manner, VerbsPort};
use gapless_btl::{Btl, LinkError, Secret};

fn unbuilt() -> LinkError {
    let reason = "this program was built without verbs (cargo feature `ib`)".to_owned();
    LinkError::Unreachable { reason }
}

/// # Errors
/// Always.
pub(super) fn list(_: &Manner) -> Result<Vec<Port>, LinkError> {
    Err(unbuilt())
}

/// # Errors
/// Always.
pub(super) fn open(
    _: (&'static str, &VerbsPort),
    _: &Manner,
    _: (&str, u32),
    _: &Secret,
) -> Result<Box<dyn Btl>, LinkError> {
    Err(unbuilt())
}
