//! What the start of a job costs its launcher and its processes, up to 10,000 of them: all ranks of a job in this one
//! process, with a launcher that counts what it is asked, and a transport that only notes which links are asked for.
//!
//! `GAPLESS_START_JSON=FILE cargo test -p gapless-boot --lib meet::start` writes the table as JSON.

use super::*;
use crate::process_record::write;
use crate::wireup::WireupError;
use gapless_btl::{AmTag, Btl, Limits, PeerId, ReserveError, Sink, Slot, Token};
use gapless_engine::HostEngine;
use gapless_pml::{Config, Pml};
use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard};

/// What the launcher has, and was asked.
#[derive(Default)]
struct Store {
    values: HashMap<(u32, String), String>,
    puts: u64,
    gets: u64,
    bytes: u64,
}

#[derive(Clone)]
struct Sim {
    rank: u32,
    size: u32,
    store: Arc<Mutex<Store>>,
}

impl Sim {
    fn store(&self) -> MutexGuard<'_, Store> {
        self.store.lock().unwrap()
    }
}

impl Wireup for Sim {
    fn rank(&self) -> u32 {
        self.rank
    }

    fn size(&self) -> u32 {
        self.size
    }

    fn local_size(&self) -> Option<u32> {
        None
    }

    fn job(&self) -> &str {
        "sim"
    }

    fn put(&mut self, key: &str, value: &str) -> Result<(), WireupError> {
        let mut store = self.store();
        store.puts += pieces(value);
        store.values.insert((self.rank, key.to_owned()), value.to_owned());
        Ok(())
    }

    /// Ranks take their steps in order, so nobody has to wait.
    fn fence(&mut self) -> Result<(), WireupError> {
        Ok(())
    }

    fn answers_at_fences(&self) -> bool {
        true
    }

    fn get(&mut self, from: u32, key: &str) -> Result<String, WireupError> {
        let mut store = self.store();
        let missing = || WireupError::NoSuchKey { from, key: key.to_owned() };
        let value = store.values.get(&(from, key.to_owned())).cloned().ok_or_else(missing)?;
        store.gets += pieces(&value);
        store.bytes += value.len() as u64;
        Ok(value)
    }

    fn finalize(&mut self) -> Result<(), WireupError> {
        Ok(())
    }
}

/// As PMI-1 carries a value.
fn pieces(value: &str) -> u64 {
    value.len().div_ceil(1018).max(1) as u64
}

/// A transport whose links never come up.
struct Quiet {
    limits: Limits,
    address: Address,
    known: u32,
    asked: Arc<Mutex<HashSet<u32>>>,
}

impl Quiet {
    fn new(name: &'static str, rank: u32) -> Quiet {
        let limits = Limits {
            name,
            eager_bytes: 256,
            max_fragment_bytes: 256,
            ordered: true,
            latency_ns: 1000,
            bandwidth_mb_s: 1000,
            death_notice_ms: 1000,
        };
        // As long as those of TCP.
        let mut bytes = vec![0; 51];
        bytes[..4].copy_from_slice(&rank.to_le_bytes());
        let address = Address::new(&bytes).unwrap();
        Quiet { limits, address, known: 0, asked: Arc::default() }
    }
}

impl Btl for Quiet {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn address(&self) -> Address {
        self.address.clone()
    }

    fn connect(&mut self, _: &Address) -> Result<PeerId, LinkError> {
        self.known += 1;
        Ok(PeerId(self.known - 1))
    }

    fn has_met(&self, peer: PeerId) -> bool {
        self.asked.lock().unwrap().contains(&peer.0)
    }

    fn callers(&mut self) -> Option<Vec<u32>> {
        Some(Vec::new())
    }

    fn reserve(&mut self, to: PeerId, _: usize) -> Result<Slot, ReserveError> {
        self.asked.lock().unwrap().insert(to.0);
        Err(ReserveError::Full)
    }

    fn send(&mut self, _: Slot, _: AmTag, _: Token) {
        unreachable!("there are no slots")
    }

    fn poll(&mut self, _: Option<PeerId>, _: &mut dyn Sink) -> usize {
        0
    }
}

/// Set in the process that measures.
const CHILD: &str = "GAPLESS_START_CHILD";

/// Pages of this process, in bytes.
fn memory() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    text.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * rustix::param::page_size() as u64
}

/// What a start costs: for the whole job, and for each rank.
#[derive(Debug)]
struct Cost {
    ranks: u32,
    hosts: u32,
    gets: u64,
    bytes: u64,
    gets_of_a_rank: u64,
    /// Rank 0 reads the records of all, before the others can go on.
    gets_of_rank_0: u64,
    links_of_a_rank: u64,
    memory_of_a_rank: u64,
}

/// Starts a job on hosts with so many processes each; each is kept on a core of its own. Only `shown` ranks besides rank 0
/// take the steps that all but rank 0 take alike, and count for the others.
fn start(ranks: u32, each: u32, shown: u32) -> Cost {
    let store = Arc::new(Mutex::new(Store::default()));
    let wireup = |rank| Sim { rank, size: ranks, store: Arc::clone(&store) };
    let own = write("0a", Network::Able, false);
    let record = |rank: u32| {
        let [kind, _, _] = process_record::parts(&own);
        let core = format!("{:0>32x}", 1u128 << (rank % each));
        let host = format!("3b9a0c7d5e61f2844c0de5b7a1903c66-40265{:05}", rank / each);
        format!(
            "{kind},processors:{core},host:{host},socket:0,numa:{},l3:{}",
            rank % each / 32,
            rank % each / 8
        )
    };
    let address = |rank| Quiet::new(SM, rank).address();
    for rank in 0..ranks {
        publish(&mut wireup(rank), &record(rank), &[(SM.to_owned(), address(rank))]).unwrap();
        let word = process_record::write_rail("tcp/0a010000-16", &address(rank));
        wireup(rank).put(PLACES, &word).unwrap();
    }
    let puts = std::mem::take(&mut store.lock().unwrap().puts);
    let map = Arc::new(read_map(&mut wireup(0), &record(0)).unwrap());
    let (first, first_bytes) = {
        let store = store.lock().unwrap();
        (store.gets, store.bytes)
    };
    let stride = ((ranks - 1) / shown.max(1)).max(1);
    let sample: Vec<u32> = (0..shown.min(ranks - 1)).map(|at| 1 + at * stride).collect();
    let (before, mut worlds, mut links) = (memory(), Vec::new(), 0);
    for &rank in &sample {
        let connection = Connection::new(Box::new(wireup(rank)));
        let read = Arc::new(read_map(&mut **connection.launcher(), &record(rank)).unwrap());
        assert_eq!(read, map);
        assert!(way_missing(&read, (rank, Network::Able), true).is_none());
        let mut bml = Bml::new(Rank(rank), ranks);
        let (near, far) = (Quiet::new(SM, rank), Quiet::new("tcp", rank));
        let asked = [Arc::clone(&near.asked), Arc::clone(&far.asked)];
        bml.add(Box::new(near));
        bml.add(Box::new(far));
        let directory = Addresses {
            connection,
            me: rank,
            worlds_before: 0,
            map: Arc::clone(&read),
            several_hosts: ranks > each,
            has_shared_memory: true,
            has_others: false,
            labels: vec!["tcp/0a010000-16".to_owned()],
        };
        assert!(bml.set_directory(Box::new(directory)));
        bml.watch();
        links += asked.iter().map(|asked| asked.lock().unwrap().len() as u64).sum::<u64>();
        let pml = Pml::new(bml, vec![Arc::new(HostEngine)], Config::default());
        worlds.push((pml, Places::new(&read)));
    }
    let shown = sample.len() as u64;
    let memory_of_a_rank = memory().saturating_sub(before) / shown;
    let store = store.lock().unwrap();
    let (gets, bytes) = (store.gets - first, store.bytes - first_bytes);
    let all = u64::from(ranks - 1);
    assert!(puts <= 3 * u64::from(ranks) + 1, "{puts} puts");
    Cost {
        ranks,
        hosts: ranks.div_ceil(each),
        gets: first + gets * all / shown,
        bytes: first_bytes + bytes * all / shown,
        gets_of_a_rank: gets / shown,
        gets_of_rank_0: first,
        links_of_a_rank: links / shown,
        memory_of_a_rank,
    }
}

/// Requests grow as N log N with the number of processes, links and descriptors of a process as log N; its memory by a row
/// for each other process.
#[test]
fn ten_thousand_processes_start_without_a_square_of_anything() {
    if std::env::var_os(CHILD).is_none() {
        // In a process of its own: what other tests take is not measured.
        let name = "meet::start::ten_thousand_processes_start_without_a_square_of_anything";
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        let output = child.args([name, "--exact", "--nocapture"]).env(CHILD, "1").output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        println!("{said}");
        assert!(output.status.success() && said.contains("1 passed"), "{output:?}");
        return;
    }
    let costs: Vec<Cost> =
        [10, 100, 1000, 10_000].into_iter().map(|ranks| start(ranks, 100, 40)).collect();
    let mut rows = Vec::new();
    println!(
        "  ranks  hosts  requests  of rank 0  of a rank   KB carried  links of a rank  KB of a rank"
    );
    for cost in &costs {
        let Cost { ranks, hosts, gets, bytes, gets_of_rank_0, .. } = cost;
        let Cost { gets_of_a_rank, links_of_a_rank, memory_of_a_rank, .. } = cost;
        println!(
            "{ranks:7}  {hosts:5}  {gets:8}  {gets_of_rank_0:9}  {gets_of_a_rank:9}  {:11}  {links_of_a_rank:15}  {:12}",
            bytes / 1000,
            memory_of_a_rank / 1000
        );
        rows.push(format!(
            "{{\"ranks\": {ranks}, \"hosts\": {hosts}, \"requests\": {gets}, \"requests_of_rank_0\": {gets_of_rank_0}, \
             \"requests_of_a_rank\": {gets_of_a_rank}, \"bytes\": {bytes}, \"links_of_a_rank\": {links_of_a_rank}, \"bytes_of_a_rank\": {memory_of_a_rank}}}"
        ));
        let distances = u64::from(ranks.next_power_of_two().trailing_zeros());
        assert!(*links_of_a_rank <= 2 * distances, "{cost:?}");
        // A job map of some pieces, and an address for each link.
        assert!(*gets_of_a_rank <= 2 * distances + 24, "{cost:?}");
        // Each record once, and who has published what.
        assert!(*gets_of_rank_0 <= 2 * u64::from(*ranks), "{cost:?}");
        assert!(*memory_of_a_rank <= 1_000_000 + 2_000 * u64::from(*ranks), "{cost:?}");
    }
    if let Some(file) = std::env::var_os("GAPLESS_START_JSON") {
        std::fs::write(file, format!("[\n  {}\n]\n", rows.join(",\n  "))).unwrap();
    }
}
