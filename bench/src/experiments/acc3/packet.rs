//! How long the packets of a pipeline between a device and a network are, by what both channels reach with packets of
//! each length (Aji et al. 2012, §III.A).

/// A channel's rates: bytes of a packet, in ascending order, and bytes a second.
pub(super) type Rates = [(u64, f64)];

/// A channel peaks where it reaches so much of its best rate.
pub(super) const PEAK: f64 = 0.95;

/// A choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Packet {
    /// Bytes of a packet.
    pub(super) bytes: u64,
    /// From which packets on the other channel is the faster one; `None` if one is always.
    pub(super) crossing: Option<u64>,
    /// Whether the network is the slower channel, by its best rate.
    pub(super) network_is_slower: bool,
}

/// The packet at which the two channels are equally fast. Where they never are, or where both are still bound by latency
/// there: the shortest at which the slower one peaks. Both have rates for the same packets; `None` without any.
#[must_use]
pub(super) fn choose(bus: &Rates, network: &Rates) -> Option<Packet> {
    let best = |rates: &Rates| rates.iter().map(|(_, rate)| *rate).fold(0.0, f64::max);
    let peaks = |rates: &Rates, at: usize| rates[at].1 >= PEAK * best(rates);
    let both: Vec<_> = bus.iter().zip(network).map(|(bus, network)| bus.1 >= network.1).collect();
    let crossing = (1..both.len()).rfind(|at| both[*at] != both[*at - 1]);
    let network_is_slower = best(network) <= best(bus);
    let slower = if network_is_slower { network } else { bus };
    let at = match crossing {
        Some(at) if peaks(bus, at) || peaks(network, at) => at,
        _ => (0..slower.len()).find(|at| peaks(slower, *at))?,
    };
    let crossing = crossing.map(|at| bus[at].0);
    Some(Packet { bytes: slower[at].0, crossing, network_is_slower })
}

/// Those rates, if the channel were so many times slower: in what it does a byte, not a packet.
#[must_use]
pub(super) fn throttled(rates: &Rates, times: f64) -> Vec<(u64, f64)> {
    let more = (times - 1.0) / rates.iter().map(|(_, rate)| *rate).fold(0.0, f64::max);
    rates.iter().map(|(bytes, rate)| (*bytes, 1.0 / (1.0 / rate + more))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Packets from 1 KiB on, doubled, over a channel with so much overhead a packet.
    fn rates(best: f64, overhead_seconds: f64) -> Vec<(u64, f64)> {
        let rate = |bytes: u64| bytes as f64 / (overhead_seconds + bytes as f64 / best);
        (10..25).map(|shift| (1 << shift, rate(1 << shift))).collect()
    }

    #[test]
    fn where_channels_do_not_cross_the_slower_one_peaks() {
        // As in the paper's Figure 3: a query of 20 µs goes with every packet of the network.
        let (bus, network) = (rates(5e9, 8e-6), rates(3e9, 20e-6));
        let chosen = choose(&bus, &network).unwrap();
        assert_eq!((chosen.crossing, chosen.network_is_slower), (None, true));
        let at = network.iter().position(|(bytes, _)| *bytes == chosen.bytes).unwrap();
        assert!(network[at].1 >= PEAK * 2.99e9 && network[at - 1].1 < PEAK * 3e9);
        assert_eq!(choose(&network, &bus), Some(Packet { network_is_slower: false, ..chosen }));
    }

    #[test]
    fn channels_that_cross_do_so_at_the_packet() {
        // Without overhead a packet the network leads at first.
        let (bus, network) = (rates(50e9, 5e-6), rates(3e9, 0.0));
        let chosen = choose(&bus, &network).unwrap();
        assert_eq!((chosen.bytes, chosen.crossing), (16 << 10, Some(16 << 10)));
    }

    #[test]
    fn throttled_channels_peak_with_shorter_packets() {
        let network = rates(3e9, 20e-6);
        let [near, far] = [1.0, 2.5].map(|times| throttled(&network, times));
        let best = |rates: &Rates| rates.iter().map(|(_, rate)| *rate).fold(0.0, f64::max);
        assert!((best(&near) / best(&far) - 2.5).abs() < 0.01);
        let bus = rates(50e9, 1e-6);
        let packet = |network: &Rates| choose(&bus, network).unwrap().bytes;
        assert_eq!([packet(&near), packet(&far)], [2 << 20, 512 << 10]);
    }

    #[test]
    fn a_crossing_at_which_both_are_bound_by_latency_does_not_count() {
        let (bus, network) = (rates(10e9, 30e-6), rates(5e9, 25e-6));
        let chosen = choose(&bus, &network).unwrap();
        let crossing = chosen.crossing.unwrap();
        assert!(chosen.bytes > crossing, "{chosen:?}");
        assert_eq!(choose(&[], &network), None);
    }
}
