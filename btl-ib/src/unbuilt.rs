//! What there is without the feature `ib`: the answer that there is nothing.

use crate::IbConfig;
use gapless_btl::LinkError;
use std::convert::Infallible;

fn unbuilt() -> LinkError {
    let reason = "this program was built without verbs (cargo feature `ib`)".to_owned();
    LinkError::Unreachable { reason }
}

/// The verbs transport, which this program was built without: there is no value of it.
#[derive(Debug)]
pub struct Ib(Infallible);

impl Ib {
    /// # Errors
    /// Always: this program was built without.
    pub fn new(_: IbConfig) -> Result<Ib, LinkError> {
        Err(unbuilt())
    }

    /// There is none.
    #[must_use]
    pub fn never(&self) -> Infallible {
        self.0
    }
}

/// The devices.
///
/// # Errors
/// Always: this program was built without.
pub fn devices(_: Option<u8>) -> Result<Vec<Infallible>, LinkError> {
    Err(unbuilt())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Secret;

    #[test]
    fn it_says_that_it_was_built_without() {
        let config = IbConfig::new("job", 0, Secret::new([0; 32]));
        let errors =
            [Ib::new(config).map(|_| ()).unwrap_err(), devices(None).map(|_| ()).unwrap_err()];
        for error in errors {
            assert!(error.to_string().contains("feature `ib`"), "{error}");
        }
    }
}
