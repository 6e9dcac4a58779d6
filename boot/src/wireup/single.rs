//! A job of one process, without a launcher.

use super::{Wireup, WireupError};
use std::collections::HashMap;

/// A job of one process, without a launcher.
#[derive(Debug)]
pub struct Single {
    job: String,
    store: HashMap<String, String>,
}

impl Default for Single {
    fn default() -> Single {
        Single { job: format!("single-{}", std::process::id()), store: HashMap::new() }
    }
}

impl Wireup for Single {
    fn rank(&self) -> u32 {
        0
    }

    fn size(&self) -> u32 {
        1
    }

    fn local_size(&self) -> Option<u32> {
        Some(1)
    }

    fn job(&self) -> &str {
        &self.job
    }

    fn put(&mut self, key: &str, value: &str) -> Result<(), WireupError> {
        self.store.insert(key.to_owned(), value.to_owned());
        Ok(())
    }

    fn fence(&mut self) -> Result<(), WireupError> {
        Ok(())
    }

    fn get(&mut self, from: u32, key: &str) -> Result<String, WireupError> {
        let value = self.store.get(key).filter(|_| from == 0);
        value.cloned().ok_or_else(|| WireupError::NoSuchKey { from, key: key.to_owned() })
    }

    fn finalize(&mut self) -> Result<(), WireupError> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_alone_talks_to_itself() {
        let mut single = Single::default();
        assert_eq!((single.rank(), single.size()), (0, 1));
        single.put("a", "1").unwrap();
        single.fence().unwrap();
        assert_eq!(single.get(0, "a").unwrap(), "1");
        assert!(matches!(single.get(0, "b"), Err(WireupError::NoSuchKey { .. })));
        assert!(matches!(single.get(1, "a"), Err(WireupError::NoSuchKey { from: 1, .. })));
    }
}
