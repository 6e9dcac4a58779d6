//! By which of several rails a message would be there first: pure functions of what is under way and of how quickly each
//! rail has delivered so far.
//!
//! A rail's rate is measured while it is kept busy: what its other end has confirmed, over time. A rail that nothing is
//! sent over because it is slow is not measured, so its rate is taken to rise, slowly: then it is tried again.

/// Bytes under way by which a rail counts as kept busy.
const BUSY_BYTES: u64 = 256 << 10;
/// Measurements last that long at least, in nanoseconds, and half of a second if nothing is confirmed.
const SPAN_NS: u64 = 2_000_000;
const STILL_NS: u64 = 500_000_000;
/// So long without being kept busy, a rail is taken to be a quarter quicker.
const IDLE_NS: u64 = 1_000_000_000;

/// How quickly a rail delivers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rate {
    /// What the transport promises, in bytes per microsecond; at least 1.
    promised: u64,
    /// What it was last seen to do; likewise.
    measured: u64,
    /// One-way time of a tiny message, in nanoseconds.
    latency_ns: u64,
    /// Bytes that were ever sent.
    sent: u64,
    /// Since when it is measured, how many bytes were confirmed by then, and whether it was kept busy.
    since_ns: u64,
    confirmed: u64,
    busy: bool,
}

impl Rate {
    pub(crate) fn new(latency_ns: u32, bandwidth_mb_s: u32) -> Rate {
        let promised = u64::from(bandwidth_mb_s).max(1);
        let (sent, since_ns, confirmed, busy) = (0, 0, 0, false);
        let latency_ns = u64::from(latency_ns);
        Rate { promised, measured: promised, latency_ns, sent, since_ns, confirmed, busy }
    }

    /// So many bytes were sent.
    pub(crate) fn sent(&mut self, bytes: u64) {
        self.sent += bytes;
    }

    /// In bytes per microsecond.
    pub(crate) fn measured(&self) -> u64 {
        self.measured
    }

    /// Looks at what has been confirmed by now.
    pub(crate) fn look(&mut self, now_ns: u64, outstanding: u64) {
        let confirmed = self.sent.saturating_sub(outstanding);
        let span = now_ns.saturating_sub(self.since_ns);
        let busy = outstanding >= BUSY_BYTES;
        if self.busy && busy {
            let new = confirmed.saturating_sub(self.confirmed);
            if span < SPAN_NS || (new < BUSY_BYTES && span < STILL_NS) {
                return;
            }
            let seen = (new.saturating_mul(1000) / span).max(1);
            self.measured = ((self.measured + seen) / 2).max(1);
        } else if !self.busy && !busy {
            if span < IDLE_NS {
                return;
            }
            let quicker = self.measured + self.measured / 4 + 1;
            self.measured = quicker.min(self.promised.max(self.measured));
        }
        (self.since_ns, self.confirmed, self.busy) = (now_ns, confirmed, busy);
    }

    /// When a message of `len` bytes would be there, in nanoseconds from now.
    pub(crate) fn there_in_ns(&self, outstanding: u64, len: u64) -> u64 {
        let bytes = outstanding.saturating_add(len);
        self.latency_ns.saturating_add(bytes.saturating_mul(1000) / self.measured)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends pieces for so many milliseconds over rails of these speeds, in bytes a microsecond; each takes 2 MiB at a
    /// time. Gives what each carried, in percent.
    fn shares(speeds: &[u64], ms: u64) -> Vec<u64> {
        const PIECE: u64 = 128 << 10;
        let mut rates: Vec<Rate> = speeds.iter().map(|_| Rate::new(10_000, 2_500)).collect();
        let mut under_way = vec![0u64; speeds.len()];
        let mut carried = vec![0u64; speeds.len()];
        for us in 0..ms * 1000 {
            for (bytes, speed) in under_way.iter_mut().zip(speeds) {
                *bytes = bytes.saturating_sub(*speed);
            }
            for (rate, bytes) in rates.iter_mut().zip(&under_way) {
                rate.look(us * 1000, *bytes);
            }
            let best = (0..speeds.len())
                .min_by_key(|&at| rates[at].there_in_ns(under_way[at], PIECE))
                .unwrap();
            if under_way[best] + PIECE <= 2 << 20 {
                under_way[best] += PIECE;
                carried[best] += PIECE;
                rates[best].sent(PIECE);
            }
        }
        let all: u64 = carried.iter().sum();
        carried.iter().map(|bytes| bytes * 100 / all).collect()
    }

    #[test]
    fn long_messages_are_shared_by_speed() {
        assert!(shares(&[1_000, 1_000], 500).iter().all(|&share| (48..=52).contains(&share)));
        let shares = shares(&[900, 300], 500);
        assert!((70..=80).contains(&shares[0]), "{shares:?}");
    }

    #[test]
    fn slow_rails_are_left_out() {
        let shares = shares(&[2_000, 5], 1_000);
        assert!(shares[0] >= 99, "{shares:?}");
    }

    #[test]
    fn a_rail_that_stands_still_is_left_and_tried_again() {
        let mut rate = Rate::new(10_000, 2_500);
        rate.sent(4 << 20);
        for ms in 0..10_000 {
            rate.look(ms * 1_000_000, 4 << 20);
        }
        assert!(rate.measured() <= 2, "{rate:?}");
        assert!(rate.there_in_ns(4 << 20, 1) > 1_000_000_000);
        for ms in 10_000..100_000 {
            rate.look(ms * 1_000_000, 0);
        }
        assert_eq!(rate.measured(), 2_500);
    }

    #[test]
    fn short_messages_take_the_quick_rail() {
        let (quick, slow) = (Rate::new(1_500, 2_500), Rate::new(12_000, 2_500));
        assert!(quick.there_in_ns(0, 64) < slow.there_in_ns(0, 64));
        assert!(quick.there_in_ns(1 << 20, 64) > slow.there_in_ns(0, 64));
        let silly = Rate::new(u32::MAX, 0);
        assert_eq!(silly.there_in_ns(u64::MAX, u64::MAX), u64::MAX);
    }
}
