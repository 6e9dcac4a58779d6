//! Which buffers were used lately: caches are likely to have them.

use gapless_mem::Region;
use std::collections::VecDeque;

/// Buffers that are remembered.
const KEPT: usize = 16;

/// Bytes that a processor's caches hold: what current ones have for themselves alone.
const CACHED_BYTES: u64 = 2 << 20;

/// Where the last long messages lay that had no gaps, the latest first: addresses and lengths.
#[derive(Debug, Default)]
pub(crate) struct CachedBuffers(VecDeque<(u64, u64)>);

impl CachedBuffers {
    /// Notes that a buffer is used now; whether it was so lately.
    pub(crate) fn again(&mut self, region: Option<Region>) -> bool {
        let Some(region) = region.filter(|region| region.space().cpu_accessible()) else {
            return false;
        };
        let now = (region.address(), region.len());
        let known = self.0.iter().position(|one| *one == now);
        let since = self.0.iter().take(known.unwrap_or(0)).map(|(_, bytes)| bytes);
        let bytes = since.fold(region.len(), |sum, bytes| sum.saturating_add(*bytes));
        match known {
            Some(at) => drop(self.0.remove(at)),
            None => self.0.truncate(KEPT - 1),
        }
        self.0.push_front(now);
        known.is_some() && bytes <= CACHED_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gapless_mem::Space;

    #[test]
    fn buffers_used_a_moment_ago_are_cached() {
        let mut cached = CachedBuffers::default();
        let mut again =
            |at: u64, len: u64| cached.again(Some(Region::new(Space::Host, at << 24, 0, len)));
        let third = CACHED_BYTES / 3;
        assert!(!again(1, third) && again(1, third));
        assert!(!again(2, third) && !again(3, third));
        assert!(again(1, third) && again(2, third) && again(3, third), "all of them fit");
        assert!(!again(4, third) && !again(1, third), "too much since then");
        assert!(again(1, third) && !again(1, third - 1), "another length");
        assert!(!again(5, CACHED_BYTES + 1) && !again(5, CACHED_BYTES + 1), "too long");
        for at in 0..KEPT as u64 {
            again(100 + at, 1);
        }
        assert!(again(100, 1) && !again(1, third));
        assert!(!cached.again(None) && cached.0.len() == KEPT);
        let device = Region::new(Space::Device { kind: "fake", device: 1 }, 1 << 24, 0, 8);
        assert!(!cached.again(Some(device)) && !cached.again(Some(device)));
    }
}
