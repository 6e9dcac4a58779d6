//! How long to wait for an acknowledgement before sending again: smoothed round-trip time plus four
//! deviations, doubled at every timeout (RFC 6298), between bounds that suit a loopback interface
//! and processes that do not always poll.

use std::time::Duration;

/// The shortest wait. Above the delay of an acknowledgement and a scheduler's usual turn.
const MIN: Duration = Duration::from_millis(10);
/// The longest: a peer that polls again after a long computation is served this soon.
const MAX: Duration = Duration::from_millis(200);
const INITIAL: Duration = Duration::from_millis(25);

#[derive(Debug)]
pub(crate) struct Rto {
    /// Smoothed round-trip time and its deviation; `None` before the first sample.
    smoothed: Option<(Duration, Duration)>,
    /// Timeouts in a row.
    backoff: u32,
}

impl Rto {
    pub(crate) fn new() -> Rto {
        Rto { smoothed: None, backoff: 0 }
    }

    /// A message that was sent once was acknowledged after `round_trip`.
    pub(crate) fn sample(&mut self, round_trip: Duration) {
        let round_trip = round_trip.min(MAX);
        self.smoothed = Some(match self.smoothed {
            None => (round_trip, round_trip / 2),
            Some((mean, deviation)) => {
                let error = mean.abs_diff(round_trip);
                (mean * 7 / 8 + round_trip / 8, deviation * 3 / 4 + error / 4)
            }
        });
        self.backoff = 0;
    }

    pub(crate) fn timed_out(&mut self) {
        self.backoff = (self.backoff + 1).min(16);
    }

    /// Something was acknowledged: timeouts are no longer in a row.
    pub(crate) fn progressed(&mut self) {
        self.backoff = 0;
    }

    pub(crate) fn wait(&self) -> Duration {
        let base = match self.smoothed {
            None => INITIAL,
            Some((mean, deviation)) => (mean + 4 * deviation).max(MIN),
        };
        base.saturating_mul(1 << self.backoff).min(MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_follows_the_wire_and_stays_within_bounds() {
        let mut rto = Rto::new();
        assert_eq!(rto.wait(), INITIAL);
        for _ in 0..50 {
            rto.sample(Duration::from_micros(30));
        }
        assert_eq!(rto.wait(), MIN);
        for _ in 0..50 {
            rto.sample(Duration::from_millis(20));
        }
        assert!(rto.wait() >= Duration::from_millis(20) && rto.wait() < Duration::from_millis(40));
        rto.sample(Duration::from_secs(1000));
        assert!(rto.wait() <= MAX);
        let mut rto = Rto::new();
        for expected_ms in [25, 50, 100, 200, 200] {
            assert_eq!(rto.wait(), Duration::from_millis(expected_ms));
            rto.timed_out();
        }
        for _ in 0..100 {
            rto.timed_out();
        }
        assert_eq!(rto.wait(), MAX);
        rto.progressed();
        assert_eq!(rto.wait(), INITIAL);
    }
}
