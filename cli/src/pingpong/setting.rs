//! How messages of a case are carried, where that is not left to the cost model.

use gapless_pml::{Config, Protocol};

/// How a message is to be sent: a protocol, fragments. The default leaves that to the cost model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Setting {
    /// This protocol, wherever it is possible.
    pub force: Option<Protocol>,
    /// Fragments of so many bytes.
    pub fragment_bytes: Option<u32>,
    /// So many fragments in work at a time.
    pub depth: Option<u32>,
}

impl Setting {
    /// The configuration that it makes of another one, for memory that lives as long as the processes:
    /// peers may map it.
    #[must_use]
    pub fn over(self, mut config: Config) -> Config {
        config.force = self.force.or(config.force);
        config.share_device_buffers = true;
        let tuning = &mut config.tuning;
        if let Some(bytes) = self.fragment_bytes {
            *tuning = tuning.clone().in_fragments(bytes);
            (tuning.staged_fragment_bytes, tuning.staged_least_bytes) = (bytes, bytes);
        }
        if let Some(depth) = self.depth {
            (tuning.depth, tuning.staged_depth) = (depth, depth);
        }
        config
    }
}
