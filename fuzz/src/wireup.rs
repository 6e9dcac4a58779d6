//! What launchers, and processes through them, say at start-up. The first byte says who speaks.

use gapless::wireup::{Limits, Pmi1, Wireup};
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// Bytes that a socket surely takes at once.
const SAID_MAX: usize = 16 << 10;

pub(crate) fn run(bytes: &[u8]) {
    let Some((&who, said)) = bytes.split_first() else { return };
    match who % 4 {
        0 => launcher(said, false),
        1 => launcher(said, true),
        2 => records(said),
        _ => children(said),
    }
}

/// A launcher that says all of this and closes: the client must understand or refuse.
fn launcher(said: &[u8], introduce: bool) {
    let Ok((ours, mut theirs)) = UnixStream::pair() else { return };
    if theirs.write_all(&said[..said.len().min(SAID_MAX)]).is_err() {
        return;
    }
    // The requests are still read by nobody, but the answers end.
    let _ = theirs.shutdown(std::net::Shutdown::Write);
    let limits = Limits { answer: Duration::from_secs(5), gathering: Duration::from_secs(5) };
    let started = match introduce {
        true => Pmi1::introduce(OwnedFd::from(ours), 1, Some(2), limits),
        false => Pmi1::start(OwnedFd::from(ours), 1, 3, Some(2), limits),
    };
    if let Ok(mut pmi) = started {
        assert!(pmi.rank() < pmi.size(), "a rank that is none");
        let _ = pmi.put("card", &"x".repeat(3000));
        let _ = pmi.fence();
        for rank in 0..3 {
            if let Ok(value) = pmi.get(rank, "card") {
                records(value.as_bytes());
            }
        }
    }
    let mut asked = Vec::new();
    let _ = theirs.set_nonblocking(true);
    let _ = theirs.read_to_end(&mut asked);
    assert!(asked.is_empty() || asked.ends_with(b"\n"), "a request that is no line");
}

/// What processes publish of themselves, a line each.
fn records(said: &[u8]) {
    for line in String::from_utf8_lossy(said).lines() {
        #[cfg(fuzzing)]
        gapless::fuzzing::record(line);
        #[cfg(not(fuzzing))]
        let _ = line;
    }
}

/// What processes ask the launcher, a byte for who it is before each line.
#[cfg(fuzzing)]
fn children(said: &[u8]) {
    use gapless::fuzzing::Requests;
    let mut requests = Requests::new();
    for line in said.split(|&byte| byte == b'\n') {
        let Some((&who, line)) = line.split_first() else { continue };
        let rank = usize::from(who) % Requests::RANKS;
        if who >= 0xF0 {
            requests.end(rank);
        }
        requests.ask(rank, &String::from_utf8_lossy(line));
    }
}

#[cfg(not(fuzzing))]
fn children(_: &[u8]) {}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let rest = "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0\n\
                cmd=maxes kvsname_max=256 keylen_max=64 vallen_max=1024\n\
                cmd=my_kvsname kvsname=job-1\n\
                cmd=put_result rc=0\ncmd=put_result rc=0\ncmd=put_result rc=0\n\
                cmd=barrier_out rc=0\n\
                cmd=get_result rc=0 value=2+sm:00ff\ncmd=get_result rc=0 value=x\n\
                cmd=get_result rc=-1 msg=no_such_key\n";
    let introduced =
        format!("cmd=initack rc=0\ncmd=set size=3\ncmd=set rank=1\ncmd=set debug=0\n{rest}");
    #[cfg(fuzzing)]
    let own = gapless::fuzzing::own_record();
    #[cfg(not(fuzzing))]
    let own = String::new();
    let asked = "0cmd=init pmi_version=1\n1cmd=get_maxes\n2cmd=put kvsname=j key=a value=b\n\
                 0cmd=get kvsname=j key=a\n0cmd=barrier_in\n1cmd=barrier_in\n2cmd=barrier_in\n\
                 1cmd=finalize\n2cmd=abort exitcode=3\n0cmd=get_universe_size\n";
    let said = [(0, rest), (1, &introduced), (2, &own), (2, "sm:00ff\nsm:zz\nlo:"), (3, asked)];
    said.iter().map(|(who, text)| [&[*who], text.as_bytes()].concat()).collect()
}
