//! Which addresses of this host peers are told of: pure functions of its interfaces and of what the user wants.

use super::interfaces::Interface;
use super::wanted::Pattern;
use gapless_btl_tcp::ListenAddress;
use std::net::IpAddr;

/// Beginnings of the names of interfaces that lead to containers and virtual machines of this host.
const INNER: [&str; 15] = [
    "docker", "br-", "virbr", "vnet", "tap", "cni", "veth", "podman", "nerdctl", "lxcbr", "lxdbr",
    "cali", "cilium", "flannel", "kube-",
];

/// One word of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Name {
    /// The name of an interface, or its beginning if a star follows.
    Interface { name: String, star: bool },
    /// Addresses of a network.
    Network(ListenAddress),
}

impl Pattern for Name {
    type Thing = Interface;

    fn parse(word: &str) -> Result<Name, String> {
        let wrong = || format!("{word:?}, not an interface or network");
        if let Ok(address) = word.parse::<IpAddr>() {
            return Ok(Name::Network(ListenAddress::alone(address)));
        }
        if let Some((address, bits)) = word.split_once('/') {
            let address = address.parse::<IpAddr>().map_err(|_| wrong())?;
            let prefix_bits = bits.parse::<u8>().map_err(|_| wrong())?;
            let most = ListenAddress::alone(address).prefix_bits;
            return if prefix_bits <= most {
                Ok(Name::Network(ListenAddress { address, prefix_bits }))
            } else {
                Err(wrong())
            };
        }
        let (name, star) = word.strip_suffix('*').map_or((word, false), |name| (name, true));
        let is_part = |c: char| c.is_ascii_alphanumeric() || "-_.:@".contains(c);
        let fits = name.len() < libc::IFNAMSIZ && name.chars().all(is_part);
        if !fits || (name.is_empty() && !star) {
            return Err(wrong());
        }
        Ok(Name::Interface { name: name.to_owned(), star })
    }

    fn matches(&self, interface: &Interface) -> bool {
        match self {
            Name::Interface { name, star: true } => interface.name.starts_with(name.as_str()),
            Name::Interface { name, star: false } => interface.name == *name,
            Name::Network(network) => network.is_near(interface.place.address),
        }
    }
}

/// Words apart by commas: the name of an interface (`eth0`, `ib*`), a network (`10.1.0.0/16`) or an address. After `!` it is
/// not used. Without any to use, all are but those that are not.
pub(super) type Wanted = super::wanted::Wanted<Name>;

/// The addresses to listen at. What was not asked for by name or network: loopback only if there is nothing else, and
/// the ways to containers and virtual machines of this host only before that. IPv4 comes first.
pub(super) fn places(all: &[Interface], wanted: &Wanted) -> Vec<ListenAddress> {
    let usable = |it: &&Interface| it.is_up && !is_local(it.place.address);
    let left: Vec<&Interface> =
        all.iter().filter(usable).filter(|it| !wanted.excludes(it)).collect();
    let inner = |it: &Interface| INNER.iter().any(|start| it.name.starts_with(start));
    let found = if !wanted.asks() {
        let rank = |it: &Interface| (it.is_loopback, inner(it));
        let best = left.iter().map(|it| rank(it)).min();
        left.into_iter().filter(|it| Some(rank(it)) == best).collect()
    } else {
        left.into_iter().filter(|it| wanted.includes(it)).collect::<Vec<_>>()
    };
    let mut places: Vec<ListenAddress> = found.into_iter().map(|it| it.place).collect();
    places.sort_by_key(|place| place.address.is_ipv6());
    places.dedup();
    places
}

/// Which of these addresses are a rail together: those of one interface, if the user has asked for some; else all. An
/// interface that is named several times is as many rails.
pub(super) fn rails(
    all: &[Interface],
    wanted: &Wanted,
    places: Vec<ListenAddress>,
) -> Vec<Vec<ListenAddress>> {
    if !wanted.asks() {
        return vec![places];
    }
    let name = |place: &ListenAddress| all.iter().find(|it| it.place == *place).map(|it| &it.name);
    let mut rails: Vec<Vec<ListenAddress>> = Vec::new();
    for place in places {
        match rails.iter_mut().find(|rail| name(&rail[0]) == name(&place)) {
            Some(rail) => rail.push(place),
            None => rails.push(vec![place]),
        }
    }
    let times = |rail: &Vec<ListenAddress>| {
        let of = name(&rail[0]);
        let names = |word: &&Name| match word {
            Name::Interface { name, star: false } => Some(name) == of,
            _ => false,
        };
        wanted.words().iter().filter(names).count().max(1)
    };
    rails.into_iter().flat_map(|rail| std::iter::repeat_n(rail.clone(), times(&rail))).collect()
}

/// Keeps so many rails, and of each so many addresses, the first ones; says what is left out, if anything is.
pub(super) fn bound(
    rails: &mut Vec<Vec<ListenAddress>>,
    (most, each): (usize, usize),
) -> Option<String> {
    let more = rails.split_off(most.min(rails.len())).into_iter().flatten();
    let rest = rails.iter_mut().flat_map(|places| places.split_off(each.min(places.len())));
    let left: Vec<String> = rest.chain(more).map(|place| place.address.to_string()).collect();
    let what = "nobody can call this process at these, beyond the first";
    (!left.is_empty())
        .then(|| format!("{what} {each} addresses of {most} rails: {}", left.join(", ")))
}

/// Whether an address means nothing on other hosts, or names no host. (Loopback does not count.)
fn is_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => v4.is_link_local() || v4.is_unspecified() || v4.is_multicast(),
        IpAddr::V6(v6) => v6.is_unicast_link_local() || v6.is_unspecified() || v6.is_multicast(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interface(name: &str, address: &str) -> Interface {
        let (address, bits) = address.split_once('/').unwrap();
        let place =
            ListenAddress { address: address.parse().unwrap(), prefix_bits: bits.parse().unwrap() };
        Interface { name: name.to_owned(), place, is_up: true, is_loopback: name == "lo" }
    }

    /// As on many a host.
    fn all() -> Vec<Interface> {
        let mut all = [
            ("lo", "127.0.0.1/8"),
            ("lo", "::1/128"),
            ("eth0", "fd00:1::7/64"),
            ("eth0", "fe80::1/64"),
            ("eth0", "10.1.2.3/24"),
            ("ib0", "10.9.0.3/16"),
            ("docker0", "172.17.0.1/16"),
            ("veth12ab", "169.254.7.7/16"),
            ("eth1", "192.168.0.3/24"),
        ]
        .map(|(name, address)| interface(name, address));
        all[8].is_up = false;
        all.to_vec()
    }

    fn chosen(all: &[Interface], list: &str) -> Vec<String> {
        let places = places(all, &Wanted::parse(list).unwrap());
        places.iter().map(|place| place.address.to_string()).collect()
    }

    #[test]
    fn what_leads_to_other_hosts_is_used_by_default() {
        assert_eq!(chosen(&all(), ""), ["10.1.2.3", "10.9.0.3", "fd00:1::7"]);
        assert_eq!(chosen(&all(), "!eth0"), ["10.9.0.3"]);
        assert_eq!(chosen(&all(), "!10.0.0.0/8"), ["fd00:1::7"]);
        assert_eq!(chosen(&all(), "!eth*, !10.9.0.3"), ["172.17.0.1"], "nothing better is left");
        assert_eq!(chosen(&all(), "!eth*,!ib*,!docker0"), ["127.0.0.1", "::1"]);
        assert_eq!(chosen(&[], ""), [""; 0]);
    }

    #[test]
    fn ways_to_containers_are_told_by_their_names() {
        for name in ["podman0", "lxdbr0", "cali12ab", "flannel.1", "cilium_host", "vnet3", "tap0"] {
            let mut all = all();
            all.push(interface(name, "10.88.0.1/16"));
            assert_eq!(chosen(&all, ""), ["10.1.2.3", "10.9.0.3", "fd00:1::7"], "{name}");
            assert_eq!(chosen(&all, name), ["10.88.0.1"]);
        }
        let mut all = all();
        all.push(interface("bridge0", "10.88.0.1/16"));
        assert!(chosen(&all, "").contains(&"10.88.0.1".to_owned()), "a host's own bridge");
    }

    #[test]
    fn what_is_asked_for_is_used_whatever_it_is() {
        assert_eq!(chosen(&all(), "lo,docker*"), ["127.0.0.1", "172.17.0.1", "::1"]);
        assert_eq!(chosen(&all(), "10.0.0.0/8, !ib0"), ["10.1.2.3"]);
        assert_eq!(chosen(&all(), "fd00::/8"), ["fd00:1::7"]);
        assert_eq!(chosen(&all(), "eth1,wlan0"), [""; 0], "down, or not there");
        assert_eq!(chosen(&all(), "*,!lo").len(), 4);
    }

    #[test]
    fn each_interface_that_is_asked_for_is_a_rail() {
        let rails = |list: &str| {
            let wanted = Wanted::parse(list).unwrap();
            let rails = rails(&all(), &wanted, places(&all(), &wanted));
            rails.iter().map(Vec::len).collect::<Vec<_>>()
        };
        assert_eq!(rails(""), [3], "one that tries all addresses");
        assert_eq!(rails("!ib0"), [2]);
        assert_eq!(rails("eth0,ib0"), [2, 1]);
        assert_eq!(rails("10.0.0.0/8"), [1, 1]);
        assert_eq!(rails("eth0"), [2]);
        assert_eq!(rails("lo,eth0,docker0"), [2, 2, 1]);
        assert_eq!(rails("ib0,ib0,eth0"), [2, 1, 1], "named twice");
        assert_eq!(rails("ib0,ib*,10.9.0.0/16"), [1], "named once");
    }

    #[test]
    fn addresses_beyond_the_bounds_are_named() {
        let places = |numbers: std::ops::Range<u8>| -> Vec<ListenAddress> {
            numbers.map(|number| interface("eth0", &format!("10.0.0.{number}/8")).place).collect()
        };
        let mut rails = vec![places(1..4), places(4..9), places(9..10)];
        assert_eq!(bound(&mut rails.clone(), (3, 5)), None);
        let what = bound(&mut rails, (2, 4)).unwrap();
        assert!(what.ends_with(" 4 addresses of 2 rails: 10.0.0.8, 10.0.0.9"), "{what}");
        assert_eq!(rails, [places(1..4), places(4..8)]);
    }

    #[test]
    fn words_that_make_no_sense_are_named() {
        for word in
            ["eth 0", "10.0.0.0/33", "10.0/8", "::1/129", "!", "/", "a-name-of-17-bytes", "é"]
        {
            let problem = Wanted::parse(&format!("eth0,{word}")).unwrap_err();
            assert!(problem.contains(word.trim_start_matches('!')), "{problem}");
        }
    }
}
