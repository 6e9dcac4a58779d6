//! Several ports of adapters: which of them a process opens, a transport each, and by which of them a pair of processes is
//! joined. Pure functions, but for where an adapter is.
//!
//! If both processes have asked for several rails, all ports that fit are used together, with TCP besides. Else one port at
//! either end is chosen, and both choose the same; if no link comes up there, or it dies unused, the next transport takes
//! over: what is used together is numbered and retained, which costs short messages more than it gives them.

use super::{IB, VerbsPort};
use crate::network::interfaces::Interface;
use crate::processors::{self, Processors};
use gapless_btl::Address;
use std::cmp::Reverse;
use std::net::{IpAddr, Ipv6Addr};
use std::path::Path;

/// What ports are called in a process, the best first.
pub(super) const NAMES: [&str; 8] = [IB, "ib1", "ib2", "ib3", "ib4", "ib5", "ib6", "ib7"];

/// The last word of the labels of a process that has asked for several rails.
const RAILS: &str = "rails";

/// Stands for a network that is not known.
const UNKNOWN: &str = "?";

/// A port of this host, and what its use depends on.
#[derive(Clone, Debug)]
pub(in crate::network) struct Port {
    pub(super) shown: VerbsPort,
    /// What it is connected to: only ports of one kind reach each other.
    pub(super) kind: &'static str,
    pub(super) gid: Option<[u8; 16]>,
    /// In Mbit/s; 0 if that is not known.
    pub(super) mbit_s: u32,
    /// Whether its adapter is as near as any to the processors of this process; also if that is not known.
    pub(super) near: bool,
}

/// Whether an adapter is attached to the processors that this process may use.
#[cfg_attr(not(feature = "ib"), allow(dead_code, reason = "there are no adapters"))]
pub(super) fn is_near(device: &str) -> bool {
    let path = Path::new("/sys/class/infiniband").join(device).join("device/local_cpulist");
    let Some(its) = processors::list(&path) else { return true };
    its.is_empty() || Processors::allowed().iter().any(|processor| its.contains(processor))
}

impl Port {
    /// The network that the port is in, as far as that can be told: on InfiniBand the subnet; on Ethernet the IP network of
    /// the interface that has its address.
    fn network(&self, interfaces: &[Interface]) -> Option<String> {
        let gid = self.gid?;
        let hexadecimal = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        if self.kind == "infiniband" {
            return Some(hexadecimal(&gid[..8]));
        }
        let v6 = Ipv6Addr::from(gid);
        let address = v6.to_ipv4_mapped().map_or(IpAddr::V6(v6), IpAddr::V4);
        let place = interfaces.iter().find(|it| it.place.address == address)?.place;
        super::super::rails::networks(&[place]).into_iter().next()
    }

    /// The label that it is published with: `ib1/ethernet/0a090000-24/100000`.
    pub(super) fn label(&self, name: &str, interfaces: &[Interface]) -> String {
        let network = self.network(interfaces);
        let network = network.as_deref().unwrap_or(UNKNOWN);
        format!("{name}/{}/{network}/{}", self.kind, self.mbit_s)
    }
}

/// Says in a label that the process wants all of its rails used.
pub(super) fn ask_for_rails(label: &mut String) {
    label.push('/');
    label.push_str(RAILS);
}

/// The ports that are opened, of those that nothing speaks against, the best first: the nearest, then the quickest. The others
/// are told why not: unless the user has asked for some, one of each network is enough, since it reaches whom the others do.
/// Behind each port are those of its network that take its place if it cannot be opened.
pub(super) fn choose(ports: &mut [Port], asks: bool, interfaces: &[Interface]) -> Vec<Vec<usize>> {
    let mut order: Vec<usize> =
        (0..ports.len()).filter(|&at| ports[at].shown.passed_over.is_none()).collect();
    order.sort_by_key(|&at| (!ports[at].near, Reverse(ports[at].mbit_s)));
    let mut chosen: Vec<Vec<usize>> = Vec::new();
    for at in order {
        let network = ports[at].network(interfaces);
        let same = |others: &Vec<usize>| {
            let other = &ports[others[0]];
            other.kind == ports[at].kind && other.network(interfaces) == network
        };
        let before = chosen.iter().position(same).filter(|_| !asks && network.is_some());
        let why = match before {
            Some(before) => {
                chosen[before].push(at);
                format!("{} of the same network is used", ports[chosen[before][0]].shown)
            }
            None if chosen.len() == NAMES.len() => format!("{} others are used", NAMES.len()),
            None => {
                chosen.push(vec![at]);
                continue;
            }
        };
        ports[at].shown.passed_over = Some(why);
    }
    chosen
}

/// Opens one of each of these ports, under names of their own: the first that can be opened.
pub(super) fn open_each<T>(
    chosen: &[Vec<usize>],
    mut open: impl FnMut(&'static str, usize) -> Option<T>,
) -> Vec<T> {
    let mut all = Vec::new();
    for ports in chosen.iter().take(NAMES.len()) {
        let name = NAMES[all.len()];
        all.extend(ports.iter().find_map(|&at| open(name, at)));
    }
    all
}

/// A port as its process publishes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PublishedPort<'a> {
    label: &'a str,
    name: &'a str,
    kind: &'a str,
    network: &'a str,
    mbit_s: u32,
    /// Its process has asked for several rails.
    asks: bool,
}

impl<'a> PublishedPort<'a> {
    /// `None`: it is a transport of another kind.
    fn read(label: &'a str) -> Option<PublishedPort<'a>> {
        let mut words = label.split('/');
        let (name, kind, network) = (words.next()?, words.next()?, words.next()?);
        let mbit_s = words.next()?.parse().ok()?;
        let asks = match words.next() {
            None => false,
            Some(RAILS) => true,
            Some(_) => return None,
        };
        let known = NAMES.contains(&name) && words.next().is_none();
        known.then_some(PublishedPort { label, name, kind, network, mbit_s, asks })
    }
}

/// The kind of an adapter's port and its network, as its label says. Ports whose network is not known count as one network
/// of their kind. `None`: the label is no adapter's port.
pub fn network(label: &str) -> Option<String> {
    let PublishedPort { kind, network, .. } = PublishedPort::read(label)?;
    Some(format!("{kind}/{network}"))
}

/// By which two of their ports two processes are joined, besides the pairs that were `taken`: of one kind, in one network
/// rather than not, the quickest that both have, and then those that come first at both. Both ends see that alike.
fn pair(
    own: &[PublishedPort<'_>],
    theirs: &[PublishedPort<'_>],
    taken: &[(usize, usize)],
) -> Option<(usize, usize)> {
    let pairs = (0..own.len()).flat_map(|here| (0..theirs.len()).map(move |there| (here, there)));
    let fits = |&(here, there): &(usize, usize)| {
        let free = taken.iter().all(|it| it.0 != here && it.1 != there);
        free && own[here].kind == theirs[there].kind
    };
    let rank = |&(here, there): &(usize, usize)| {
        let (one, other) = (&own[here], &theirs[there]);
        let apart = one.network != other.network || one.network == UNKNOWN;
        let labels = if one.label < other.label {
            (one.label, other.label)
        } else {
            (other.label, one.label)
        };
        let slower = one.mbit_s.min(other.mbit_s);
        (apart, Reverse(slower), here + there, here.abs_diff(there), labels)
    };
    pairs.filter(fits).min_by_key(rank)
}

/// The addresses of a peer, of which those of ports that are not to be used are gone; one that is left has the name that the
/// port has here which it is joined with. `own` are the labels of this process; what is no port of an adapter stays. Gives
/// whether both have asked for several rails, too, and there is a port among them.
pub(in crate::network) fn joined(
    own: &[String],
    theirs: Vec<(String, Address)>,
) -> (Vec<(String, Address)>, bool) {
    let (ports, mut found): (Vec<_>, Vec<_>) =
        theirs.into_iter().partition(|(label, _)| PublishedPort::read(label).is_some());
    let ours: Vec<PublishedPort<'_>> =
        own.iter().filter_map(|label| PublishedPort::read(label)).collect();
    let others: Vec<PublishedPort<'_>> =
        ports.iter().filter_map(|(label, _)| PublishedPort::read(label)).collect();
    let all_ask = |ports: &[PublishedPort<'_>]| ports.iter().all(|port| port.asks);
    let together = all_ask(&ours) && all_ask(&others);
    let mut pairs = Vec::new();
    while (together || pairs.is_empty())
        && let Some(pair) = pair(&ours, &others, &pairs)
    {
        pairs.push(pair);
    }
    for &(here, there) in &pairs {
        found.push((ours[here].name.to_owned(), ports[there].1.clone()));
    }
    (found, together && !pairs.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use gapless_btl_tcp::ListenAddress;

    fn port(device: &str, gid: &str, mbit_s: u32, near: bool) -> Port {
        let shown = VerbsPort {
            device: device.to_owned(),
            number: 1,
            description: String::new(),
            addresses: Vec::new(),
            passed_over: None,
        };
        let v6 = match gid.parse().unwrap() {
            IpAddr::V4(v4) => v4.to_ipv6_mapped(),
            IpAddr::V6(v6) => v6,
        };
        let kind = if gid.contains("fe80") { "infiniband" } else { "ethernet" };
        Port { shown, kind, gid: Some(v6.octets()), mbit_s, near }
    }

    fn interfaces() -> Vec<Interface> {
        let interface = |(name, address, prefix_bits): (&str, &str, u8)| Interface {
            name: name.to_owned(),
            place: ListenAddress { address: address.parse().unwrap(), prefix_bits },
            is_up: true,
            is_loopback: false,
        };
        [("eth0", "10.1.0.3", 24), ("eth1", "10.2.0.3", 24), ("eth2", "10.1.0.4", 24)]
            .map(interface)
            .to_vec()
    }

    fn opened(mut ports: Vec<Port>, asks: bool) -> (Vec<String>, Vec<Port>) {
        let chosen = choose(&mut ports, asks, &interfaces());
        (chosen.into_iter().map(|all| ports[all[0]].shown.device.clone()).collect(), ports)
    }

    /// A port that cannot be opened leaves its network to the next one there, and its name to whoever is opened next.
    #[test]
    fn ports_that_cannot_be_opened_have_others_in_their_place() {
        let mut ports = vec![
            port("a", "10.1.0.3", 400_000, true),
            port("b", "10.1.0.4", 100_000, true),
            port("c", "10.2.0.3", 50_000, true),
            port("d", "fe80::1", 25_000, true),
        ];
        let chosen = choose(&mut ports, false, &interfaces());
        assert_eq!(chosen, [vec![0, 1], vec![2], vec![3]]);
        let opened = |broken: &[usize]| {
            let mut tried = Vec::new();
            let open = |name, at| {
                tried.push(at);
                (!broken.contains(&at)).then_some((name, at))
            };
            (open_each(&chosen, open), tried)
        };
        assert_eq!(opened(&[]), (vec![("ib", 0), ("ib1", 2), ("ib2", 3)], vec![0, 2, 3]));
        assert_eq!(opened(&[0, 2]), (vec![("ib", 1), ("ib1", 3)], vec![0, 1, 2, 3]));
        assert!(opened(&[0, 1, 2, 3]).0.is_empty());
    }

    #[test]
    fn the_nearest_and_quickest_port_of_each_network_is_opened() {
        let all = || {
            vec![
                port("far", "10.1.0.3", 400_000, false),
                port("slow", "10.1.0.4", 100_000, true),
                port("other", "10.2.0.3", 200_000, true),
                port("unknown0", "10.9.0.1", 10_000, true),
                port("unknown1", "10.9.0.2", 10_000, true),
                port("ib0", "fe80::1", 400_000, true),
                port("ib1", "fe80::2", 400_000, true),
            ]
        };
        let (names, ports) = opened(all(), false);
        assert_eq!(names, ["ib0", "other", "slow", "unknown0", "unknown1"]);
        let why = |at: usize| ports[at].shown.passed_over.clone().unwrap();
        assert_eq!(why(0), "slow:1 of the same network is used");
        assert_eq!(why(6), "ib0:1 of the same network is used");
        // Whoever asks for ports has all of them.
        let (names, _) = opened(all(), true);
        assert_eq!(names, ["ib0", "ib1", "other", "slow", "unknown0", "unknown1", "far"]);
        let mut some = all();
        some[5].shown.passed_over = Some("it has no link".to_owned());
        assert_eq!(opened(some, false).0[..2], ["ib1", "other"]);
        let many = (0..12).map(|i| port(&format!("x{i}"), "10.9.0.1", 1, true)).collect();
        let (names, ports) = opened(many, true);
        assert_eq!(names.len(), NAMES.len());
        assert_eq!(ports[11].shown.passed_over.as_deref(), Some("8 others are used"));
    }

    #[test]
    fn labels_name_kind_network_and_speed() {
        let interfaces = interfaces();
        let label = |gid| port("x", gid, 100_000, true).label("ib1", &interfaces);
        assert_eq!(label("10.2.0.3"), "ib1/ethernet/0a020000-24/100000");
        assert_eq!(label("10.7.0.3"), "ib1/ethernet/?/100000");
        assert_eq!(label("fe80::7"), "ib1/infiniband/fe80000000000000/100000");
        for label in [
            "ib",
            "ib/ethernet/?",
            "ib/ethernet/?/x",
            "tcp/a/b/1",
            "ib/a/b/1/2",
            "ib9/a/b/1",
            "ib/a/b/1/rails/x",
        ] {
            assert_eq!(PublishedPort::read(label), None, "{label}");
        }
    }

    #[test]
    fn labels_tell_the_network() {
        assert_eq!(network("ib1/ethernet/0a010000-24/100/rails").unwrap(), "ethernet/0a010000-24");
        assert_eq!(network("ib/ethernet/?/100").unwrap(), "ethernet/?");
        assert_eq!(network("tcp/0a010000-24"), None);
    }

    fn joins(own: &[&str], theirs: &[&str]) -> Option<(String, u8)> {
        let own: Vec<String> = own.iter().map(|&label| label.to_owned()).collect();
        let address = |(at, &label): (u8, &&str)| (label.to_owned(), Address::new(&[at]).unwrap());
        let (found, together) = joined(&own, (0..).zip(theirs).map(address).collect());
        assert!(found.len() <= 1 && !together, "{found:?}");
        found.into_iter().next().map(|(name, it)| (name, it.as_bytes()[0]))
    }

    #[test]
    fn both_ends_choose_the_same_two_ports() {
        let (a, b) = ("0a010000-24", "0a020000-24");
        let e = |name: &str, network: &str, mbit: u32| format!("{name}/ethernet/{network}/{mbit}");
        let i = |name: &str, mbit: u32| format!("{name}/infiniband/fe80000000000000/{mbit}");
        let sets: Vec<Vec<String>> = vec![
            vec![e("ib", a, 100), e("ib1", b, 100)],
            vec![e("ib", b, 100), e("ib1", a, 100)],
            vec![e("ib", b, 400), e("ib1", a, 100), i("ib2", 200)],
            vec![i("ib", 400)],
            vec![e("ib", "?", 100), e("ib1", "?", 100), e("ib2", b, 25)],
            vec![e("ib", "?", 100), e("ib1", "?", 100)],
            vec![],
        ];
        let words = |set: &[String]| -> Vec<&'static str> {
            set.iter().map(|it| &*it.clone().leak()).collect()
        };
        for (one, other) in sets.iter().flat_map(|one| sets.iter().map(move |it| (one, it))) {
            let (one, other) = (words(one), words(other));
            let number = |name: &str| NAMES.iter().position(|it| *it == name).unwrap();
            let here = joins(&one, &other).map(|(name, at)| (number(&name), usize::from(at)));
            let there = joins(&other, &one).map(|(name, at)| (usize::from(at), number(&name)));
            assert_eq!(here, there, "{one:?} and {other:?}");
            if let Some((own, theirs)) = here {
                let kind = |label: &str| label.split('/').nth(1).unwrap().to_owned();
                assert_eq!(kind(one[own]), kind(other[theirs]));
            }
        }
        let word = |name: &str, at| Some((name.to_owned(), at));
        let [crossed, straight] = [1, 0].map(|at| words(&sets[at]));
        // In one network, although neither comes first at both.
        assert!(
            matches!(joins(&straight, &crossed), Some((name, at)) if at == u8::from(name == "ib"))
        );
        assert_eq!(joins(&straight, &words(&sets[2])), word("ib", 1), "the same speed, the first");
        assert_eq!(joins(&words(&sets[2]), &words(&sets[3])), word("ib2", 0));
        assert_eq!(joins(&words(&sets[0]), &words(&sets[3])), None, "InfiniBand and Ethernet");
        assert_eq!(
            joins(&words(&sets[4]), &words(&sets[0])),
            word("ib2", 1),
            "a network before speed"
        );
        assert_eq!(joins(&words(&sets[4]), &words(&sets[5])), word("ib", 0));
    }

    #[test]
    fn what_is_no_port_stays() {
        let address = Address::new(&[7]).unwrap();
        let theirs =
            vec![("tcp/0a000000-8".to_owned(), address.clone()), ("x".to_owned(), address)];
        let stays = joined(&["ib/ethernet/?/1".to_owned()], theirs.clone());
        assert_eq!(stays, (theirs.clone(), false));
        assert_eq!(joined(&["ib/ethernet/?/1/rails".to_owned()], theirs.clone()), (theirs, false));
    }

    /// Two processes that have asked for several rails use all ports that fit, in the same pairs; if one of them has not,
    /// one pair, as ever.
    #[test]
    fn ports_are_rails_if_both_ends_ask() {
        let (a, b) = ("0a010000-24", "0a020000-24");
        let e = |name: &str, network: &str| format!("{name}/ethernet/{network}/100");
        let rails = |labels: &[String]| -> Vec<String> {
            let mut labels = labels.to_vec();
            labels.iter_mut().for_each(ask_for_rails);
            labels
        };
        let straight = [e("ib", a), e("ib1", b), e("ib2", "?")];
        let crossed = [e("ib", b), e("ib1", a), "ib2/infiniband/fe80/400".to_owned()];
        let pairs = |own: &[String], theirs: &[String]| {
            let address =
                |(at, label): (u8, &String)| (label.clone(), Address::new(&[at]).unwrap());
            let (found, together) = joined(own, (0..).zip(theirs).map(address).collect());
            let number = |name: &str| NAMES.iter().position(|it| *it == name).unwrap();
            let pair =
                |(name, it): (String, Address)| (number(&name), usize::from(it.as_bytes()[0]));
            let mut pairs: Vec<(usize, usize)> = found.into_iter().map(pair).collect();
            pairs.sort_unstable();
            (pairs, together)
        };
        assert_eq!(pairs(&rails(&straight), &rails(&crossed)), (vec![(0, 1), (1, 0)], true));
        assert_eq!(pairs(&rails(&crossed), &rails(&straight)), (vec![(0, 1), (1, 0)], true));
        let all = rails(&straight);
        assert_eq!(pairs(&all, &all), (vec![(0, 0), (1, 1), (2, 2)], true));
        assert_eq!(
            pairs(&rails(&straight), &rails(&crossed[2..])),
            (vec![], false),
            "no port fits"
        );
        let (one, other) = (rails(&straight), crossed.to_vec());
        for (one, other, pair) in [(&one, &other, (0, 1)), (&other, &one, (1, 0))] {
            assert_eq!(pairs(one, other), (vec![pair], false), "only one asks");
        }
    }
}
