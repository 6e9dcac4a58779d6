//! The launcher's side of PMI-1 as a pure state machine: a request in, an action out.
//!
//! Processes are not trusted: a request that makes no sense gets `rc=-1`; the store is bounded.

use crate::pmi::{PmiLine, valid_word};
use std::collections::HashMap;

/// Longest key and value, in bytes: PMI-1's usual limits.
const KEY_BYTES_MAX: usize = 64;
const VALUE_BYTES_MAX: usize = 1024;
/// Keys that one process may put.
const KEYS_MAX: usize = 256;

/// What the launcher must do about a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Send this line to the process that asked.
    Reply(String),
    /// Nothing yet: others have to ask first.
    Wait,
    /// Send this line to every process.
    Release(String),
    /// End the job with this code.
    Abort(i32),
}

#[derive(Clone, Copy, Default)]
struct Process {
    initialized: bool,
    finalized: bool,
    waiting: bool,
    ended: bool,
    /// Because of whom it has left, if it did not finalize.
    because: Option<usize>,
    keys: usize,
}

pub(super) struct Server {
    job: String,
    processes: Vec<Process>,
    /// The number of the program that each process runs.
    programs: Vec<usize>,
    store: HashMap<String, String>,
}

impl Server {
    /// For as many processes as there are numbers of programs.
    pub(super) fn new(programs: Vec<usize>) -> Server {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let nanoseconds = since.map_or(0, |since| since.as_nanos());
        let job = format!("gapless-{}-{nanoseconds:x}", std::process::id());
        let processes = programs.iter().map(|_| Process::default()).collect();
        Server { job, processes, programs, store: HashMap::new() }
    }

    /// Whether the others wait for `rank`: it has joined them and not left in good order.
    pub(super) fn counts_on(&self, rank: usize) -> bool {
        self.processes[rank].initialized && !self.processes[rank].finalized
    }

    /// Because of whom `rank` has left without finalizing: itself, or another.
    pub(super) fn cause(&self, rank: usize) -> Option<usize> {
        self.processes[rank].because
    }

    /// `rank` has ended, and comes to no barrier any more.
    pub(super) fn ended(&mut self, rank: usize) {
        self.processes[rank].ended = true;
    }

    /// A process that has ended, if others wait at a barrier, which will therefore never open.
    pub(super) fn missed(&self) -> Option<usize> {
        let waited_for = self.processes.iter().any(|process| process.waiting && !process.ended);
        let gone = || self.processes.iter().position(|process| process.ended && !process.waiting);
        waited_for.then(gone).flatten()
    }

    pub(super) fn answer(&mut self, rank: usize, request: &PmiLine) -> Action {
        let size = self.processes.len();
        let reply = |text: String| Action::Reply(text + "\n");
        match request.get("cmd").unwrap_or("") {
            "init" => {
                self.processes[rank].initialized = true;
                // It may join again once it has left.
                self.processes[rank].finalized = false;
                self.processes[rank].because = None;
                // Other launchers are not told why a process leaves.
                reply("cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0 leave=1".to_owned())
            }
            "leave" => {
                let because = request.get("because").and_then(|rank| rank.parse().ok());
                self.processes[rank].because = because.filter(|&rank| rank < size);
                Action::Wait
            }
            "get_maxes" => reply(format!(
                "cmd=maxes kvsname_max=256 keylen_max={KEY_BYTES_MAX} vallen_max={VALUE_BYTES_MAX}"
            )),
            "get_my_kvsname" => reply(format!("cmd=my_kvsname kvsname={}", self.job)),
            "get_appnum" => reply(format!("cmd=appnum appnum={}", self.programs[rank])),
            "get_universe_size" => reply(format!("cmd=universe_size size={size}")),
            "put" => match self.put(rank, request) {
                Ok(()) => reply("cmd=put_result rc=0".to_owned()),
                Err(problem) => reply(format!("cmd=put_result rc=-1 msg={problem}")),
            },
            "get" => match request.get("key") {
                Some("PMI_process_mapping") => {
                    reply(format!("cmd=get_result rc=0 value=(vector,(0,1,{size}))"))
                }
                Some(key) if self.store.contains_key(key) => {
                    reply(format!("cmd=get_result rc=0 value={}", self.store[key]))
                }
                _ => reply("cmd=get_result rc=-1 msg=no_such_key".to_owned()),
            },
            "barrier_in" => {
                self.processes[rank].waiting = true;
                self.release()
            }
            "finalize" => {
                self.processes[rank].finalized = true;
                reply("cmd=finalize_ack rc=0".to_owned())
            }
            "abort" => {
                let code = request.get("exitcode").and_then(|code| code.parse().ok());
                Action::Abort(code.unwrap_or(1))
            }
            _ => reply("cmd=unknown rc=-1 msg=unknown_command".to_owned()),
        }
    }

    fn put(&mut self, rank: usize, request: &PmiLine) -> Result<(), &'static str> {
        let (key, value) = request.get("key").zip(request.get("value")).ok_or("incomplete")?;
        if !valid_word(key) || key.len() > KEY_BYTES_MAX {
            return Err("bad_key");
        }
        if !valid_word(value) || value.len() > VALUE_BYTES_MAX {
            return Err("bad_value");
        }
        let known = self.store.contains_key(key);
        if !known && self.processes[rank].keys >= KEYS_MAX {
            return Err("too_many_keys");
        }
        self.processes[rank].keys += usize::from(!known);
        self.store.insert(key.to_owned(), value.to_owned());
        Ok(())
    }

    /// Lets all go once all have come.
    fn release(&mut self) -> Action {
        if !self.processes.iter().all(|process| process.waiting) {
            return Action::Wait;
        }
        self.processes.iter_mut().for_each(|process| process.waiting = false);
        Action::Release("cmd=barrier_out rc=0\n".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(server: &mut Server, rank: usize, text: &str) -> Action {
        server.answer(rank, &PmiLine::parse(text))
    }

    #[test]
    fn keys_are_seen_by_all_after_the_barrier() {
        let mut server = Server::new(vec![0; 2]);
        let Action::Reply(put) = ask(&mut server, 0, "cmd=put kvsname=x key=a value=b=c") else {
            panic!("a put is answered at once");
        };
        assert!(put.contains("rc=0"));
        assert_eq!(ask(&mut server, 0, "cmd=barrier_in"), Action::Wait);
        assert!(matches!(ask(&mut server, 1, "cmd=barrier_in"), Action::Release(_)));
        assert_eq!(ask(&mut server, 1, "cmd=barrier_in"), Action::Wait);
        let Action::Reply(value) = ask(&mut server, 1, "cmd=get kvsname=x key=a") else {
            panic!("a get is answered at once");
        };
        assert_eq!(PmiLine::parse(&value).get("value"), Some("b=c"));
    }

    #[test]
    fn nonsense_is_answered_with_a_failure() {
        let mut server = Server::new(vec![0; 1]);
        for text in ["", "cmd=put key=a", "cmd=get", "cmd=dance", "cmd=get key=none"] {
            let Action::Reply(answer) = ask(&mut server, 0, text) else { panic!("{text}") };
            assert_eq!(PmiLine::parse(&answer).get("rc"), Some("-1"), "{text}");
        }
        let long = format!("cmd=put key=k value={}", "x".repeat(VALUE_BYTES_MAX + 1));
        let Action::Reply(answer) = ask(&mut server, 0, &long) else { panic!() };
        assert!(answer.contains("bad_value"));
        for index in 0..=KEYS_MAX {
            ask(&mut server, 0, &format!("cmd=put key=k{index} value=v"));
        }
        assert_eq!(server.store.len(), KEYS_MAX);
    }

    #[test]
    fn a_process_learns_which_program_it_runs() {
        let mut server = Server::new(vec![0, 1, 1]);
        let Action::Reply(answer) = ask(&mut server, 2, "cmd=get_appnum") else { panic!() };
        assert_eq!(PmiLine::parse(&answer).get("appnum"), Some("1"));
    }

    #[test]
    fn a_process_counts_between_init_and_finalize() {
        let mut server = Server::new(vec![0; 1]);
        assert!(!server.counts_on(0));
        ask(&mut server, 0, "cmd=init pmi_version=1 pmi_subversion=1");
        assert!(server.counts_on(0));
        ask(&mut server, 0, "cmd=finalize");
        assert!(!server.counts_on(0));
        assert_eq!(ask(&mut server, 0, "cmd=abort exitcode=3"), Action::Abort(3));
    }

    #[test]
    fn a_process_says_because_of_whom_it_leaves_once_a_world() {
        let mut server = Server::new(vec![0; 3]);
        for (word, cause) in [("1", Some(1)), ("0", Some(0)), ("3", None), ("x", None)] {
            assert_eq!(ask(&mut server, 0, &format!("cmd=leave because={word}")), Action::Wait);
            assert_eq!(server.cause(0), cause, "{word}");
        }
        ask(&mut server, 0, "cmd=leave because=2");
        ask(&mut server, 0, "cmd=init pmi_version=1 pmi_subversion=1");
        assert_eq!(server.cause(0), None);
    }

    #[test]
    fn a_barrier_that_cannot_open_is_noticed() {
        let mut server = Server::new(vec![0; 3]);
        ask(&mut server, 1, "cmd=barrier_in");
        assert_eq!(server.missed(), None, "the others may still come");
        server.ended(2);
        assert_eq!(server.missed(), Some(2));
        let mut server = Server::new(vec![0; 2]);
        server.ended(0);
        assert_eq!(server.missed(), None, "nobody waits");
        ask(&mut server, 1, "cmd=barrier_in");
        assert_eq!(server.missed(), Some(0));
        server.ended(1);
        assert_eq!(server.missed(), None, "nobody is left to wait");
    }
}
