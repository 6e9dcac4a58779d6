//! Which rail carries the messages to a peer: a pure function of what transports promise.

use gapless_btl::Limits;

/// The size, in bytes, of the message by which rails are compared: control messages and eager data
/// are below it, pipelined fragments above.
const REFERENCE_BYTES: u64 = 8 << 10;

/// How long a message of `bytes` takes one way by a transport's own estimates, in nanoseconds.
#[must_use]
pub fn predicted_ns(limits: &Limits, bytes: u64) -> u64 {
    let per_microsecond = u64::from(limits.bandwidth_mb_s).max(1);
    u64::from(limits.latency_ns).saturating_add(bytes.saturating_mul(1000) / per_microsecond)
}

/// The order in which rails are tried, best first, as indices into `rails`: those that keep
/// messages in order before those that do not, then by the time of a message of 8 KiB, then by
/// latency, then as they were given.
pub(crate) fn order(rails: &[&Limits]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..rails.len()).collect();
    order.sort_by_key(|&i| {
        let limits = rails[i];
        (!limits.ordered, predicted_ns(limits, REFERENCE_BYTES), limits.latency_ns)
    });
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rail(ordered: bool, latency_ns: u32, bandwidth_mb_s: u32) -> Limits {
        Limits {
            name: "test",
            eager_bytes: 256,
            max_fragment_bytes: 256,
            ordered,
            latency_ns,
            bandwidth_mb_s,
            death_notice_ms: 1,
        }
    }

    fn ordered(rails: &[Limits]) -> Vec<usize> {
        order(&rails.iter().collect::<Vec<_>>())
    }

    #[test]
    fn the_quicker_wire_goes_first() {
        let tcp = rail(true, 10_000, 1_000);
        let sm = rail(true, 200, 10_000);
        let ib = rail(true, 1_000, 25_000);
        assert_eq!(ordered(&[tcp.clone(), ib.clone(), sm.clone()]), [2, 1, 0]);
        // A little less latency does not make up for a tenth of the bandwidth.
        assert_eq!(ordered(&[rail(true, 900, 1_000), ib]), [1, 0]);
        assert_eq!(ordered(&[sm.clone(), sm]), [0, 1]);
        assert!(ordered(&[]).is_empty());
    }

    #[test]
    fn order_comes_before_speed() {
        assert_eq!(ordered(&[rail(false, 1, 100_000), rail(true, 50_000, 1)]), [1, 0]);
    }

    #[test]
    fn silly_numbers_do_no_harm() {
        assert_eq!(predicted_ns(&rail(true, u32::MAX, 0), u64::MAX), u64::MAX);
        assert_eq!(predicted_ns(&rail(true, 100, 1_000), 0), 100);
        assert_eq!(predicted_ns(&rail(true, 100, 1_000), 1_000), 1_100);
    }
}
