//! PMI-1 servers that fail, dawdle or lie: every call of the client ends in time, with an error that
//! says what was wrong. The servers are threads of this process.

use gapless::wireup::{Limits, Pmi1, Questions, Wireup, WireupError};
use rustix::process::{Resource, getrlimit};
use std::collections::HashMap;
use std::hash::BuildHasher;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// What clients wait for an answer, and for the others, where none comes.
const SHORT: Limits =
    Limits { answer: Duration::from_millis(400), gathering: Duration::from_millis(500) };

/// And where one comes, if only the machine is not too busy.
const LONG: Limits = Limits { answer: Duration::from_secs(20), gathering: Duration::from_secs(20) };

/// Ten times what a client's whole conversation may take.
const IN_TIME: Duration = Duration::from_secs(200);

/// Answers of a server in order to a job of two, one for each line it is sent.
const FINE: [&str; 8] = [
    "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0\n",
    "cmd=maxes kvsname_max=256 keylen_max=64 vallen_max=1024\n",
    "cmd=my_kvsname kvsname=kvs_1\n",
    "cmd=put_result rc=0 msg=success\n",
    "cmd=barrier_out\n",
    "cmd=get_result rc=0 msg=success value=1:theirs\n",
    "cmd=barrier_out\n",
    "cmd=finalize_ack\n",
];

/// Everything that a client says to those answers.
fn converse(stream: UnixStream, limits: Limits) -> Result<String, WireupError> {
    let mut pmi = Pmi1::start(stream.into(), 0, 2, Some(2), limits)?;
    pmi.put("card", "mine")?;
    pmi.fence()?;
    let theirs = pmi.get(1, "card")?;
    pmi.fence_while(&|| true)?;
    pmi.finalize()?;
    Ok(theirs)
}

/// Runs a conversation with a server that `serve`s; the client must end in time.
fn with_server(
    limits: Limits,
    serve: impl FnOnce(UnixStream) + Send + 'static,
) -> Result<String, WireupError> {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let server = std::thread::spawn(move || serve(theirs));
    let result = in_time(ours, limits);
    // What it leaves open is open to the end: hydra would kill who hangs up.
    drop(server);
    result
}

/// Runs a conversation, which must end in time.
fn in_time(stream: UnixStream, limits: Limits) -> Result<String, WireupError> {
    let (done, result) = std::sync::mpsc::channel();
    std::thread::spawn(move || done.send(converse(stream, limits)));
    result.recv_timeout(IN_TIME).expect("the client does not hang")
}

/// A stream on which these answers already wait, and its other end: what is there is read however
/// late it is, so a busy machine changes nothing.
fn answered(answers: &[&str]) -> (UnixStream, UnixStream) {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    theirs.write_all(answers.concat().as_bytes()).unwrap();
    (ours, theirs)
}

/// Reads one request.
fn heard(stream: &mut BufReader<UnixStream>) -> bool {
    let mut line = String::new();
    matches!(stream.read_line(&mut line), Ok(len) if len > 0)
}

/// A server with a list of answers, after which it keeps the connection and says nothing.
fn with_answers(limits: Limits, answers: Vec<Vec<u8>>) -> Result<String, WireupError> {
    with_server(limits, move |stream| {
        let mut stream = BufReader::new(stream);
        for answer in answers {
            if !heard(&mut stream) || stream.get_mut().write_all(&answer).is_err() {
                return;
            }
        }
        let _ = stream.read_to_end(&mut Vec::new());
    })
}

/// The fine answers with some replaced.
fn but(changes: &[(usize, &str)]) -> Result<String, WireupError> {
    let mut answers: Vec<Vec<u8>> = FINE.iter().map(|line| line.as_bytes().to_vec()).collect();
    for (index, line) in changes {
        answers[*index] = line.as_bytes().to_vec();
    }
    with_answers(LONG, answers)
}

#[test]
fn fine_answers_are_understood() {
    assert_eq!(but(&[]).unwrap(), "theirs");
    // Ends of lines as in other systems, words that nobody knows.
    let odd = [(0, "cmd=response_to_init rc=0 x y=z\r\n"), (4, "cmd=barrier_out rc=0 =\r\n")];
    assert_eq!(but(&odd).unwrap(), "theirs");
    let pieces = [(5, "cmd=get_result rc=0 value=1:\n")];
    assert_eq!(but(&pieces).unwrap(), "");
}

#[test]
fn a_server_that_closes() {
    // After any number of answers, and in the middle of one.
    for answers in 0..FINE.len() {
        for cut in [0, 1, FINE[answers].len() - 1] {
            let error = with_server(LONG, move |stream| {
                let mut stream = BufReader::new(stream);
                for answer in &FINE[..answers] {
                    heard(&mut stream);
                    stream.get_mut().write_all(answer.as_bytes()).unwrap();
                }
                heard(&mut stream);
                stream.get_mut().write_all(&FINE[answers].as_bytes()[..cut]).unwrap();
            })
            .unwrap_err();
            assert!(matches!(error, WireupError::LauncherGone { .. }), "{answers}: {error}");
            assert!(error.to_string().contains("closed"), "{error}");
        }
    }
}

#[test]
fn a_server_that_falls_silent() {
    for answers in 0..FINE.len() {
        if answers == 6 {
            continue; // The fence that is waited for as long as the caller likes.
        }
        let (ours, _theirs) = answered(&FINE[..answers]);
        let error = in_time(ours, SHORT).unwrap_err();
        match answers {
            4 => assert!(matches!(error, WireupError::NotGathered { size: 2, .. }), "{error}"),
            _ => assert!(matches!(error, WireupError::Late { .. }), "{answers}: {error}"),
        }
    }
}

#[test]
fn a_server_that_drips() {
    let error = with_server(SHORT, |stream| {
        let mut stream = BufReader::new(stream);
        heard(&mut stream);
        while stream.get_mut().write_all(b"c").is_ok() {
            std::thread::sleep(Duration::from_millis(20));
        }
    });
    assert!(matches!(error, Err(WireupError::Late { doing: "init", .. })), "{error:?}");
}

#[test]
fn a_server_without_an_end() {
    let error = with_server(LONG, |mut stream| while stream.write_all(&[b'x'; 4096]).is_ok() {});
    let error = error.unwrap_err();
    assert!(matches!(error, WireupError::BadAnswer { .. }), "{error}");
    assert!(error.to_string().contains("no end") && error.to_string().len() < 300, "{error}");
}

/// An answer that comes too late is not taken for the answer to the next question.
#[test]
fn a_server_that_is_late() {
    let (ours, theirs) = answered(&FINE[..3]);
    let mut pmi = Pmi1::start(ours.into(), 0, 2, None, SHORT).unwrap();
    let error = pmi.put("card", "mine").unwrap_err();
    assert!(matches!(error, WireupError::Late { doing: "put_result", .. }), "{error}");
    let mut stream = BufReader::new(theirs);
    (0..4).for_each(|_| assert!(heard(&mut stream)));
    stream.get_mut().write_all(FINE[3].as_bytes()).unwrap();
    for error in
        [pmi.put("other", "x").unwrap_err(), pmi.fence().unwrap_err(), pmi.finalize().unwrap_err()]
    {
        assert!(matches!(error, WireupError::LauncherGone { .. }), "{error}");
        assert!(error.to_string().contains("given up at"), "{error}");
    }
    stream.get_mut().set_nonblocking(true).unwrap();
    let more = stream.fill_buf().map(<[u8]>::len).map_err(|error| error.kind());
    assert_eq!(more, Err(ErrorKind::WouldBlock), "nothing more was asked");
}

#[test]
fn a_fence_is_waited_for_as_long_as_the_caller_likes() {
    let (ours, theirs) = answered(&FINE[..3]);
    let server = std::thread::spawn(move || {
        let mut stream = BufReader::new(theirs);
        // Longer than any limit, but it opens.
        (0..4).for_each(|_| assert!(heard(&mut stream)));
        std::thread::sleep(SHORT.gathering * 2);
        stream.get_mut().write_all(b"cmd=barrier_out\n").unwrap();
        heard(&mut stream);
        let _ = stream.read_to_end(&mut Vec::new());
    });
    let mut pmi = Pmi1::start(ours.into(), 0, 2, None, SHORT).unwrap();
    pmi.fence_while(&|| true).unwrap();
    let started = Instant::now();
    let error = pmi.fence_while(&|| started.elapsed() < SHORT.answer).unwrap_err();
    assert_eq!(error, WireupError::GivenUp);
    assert!(started.elapsed() < IN_TIME);
    assert!(matches!(pmi.fence(), Err(WireupError::LauncherGone { .. })), "it is of no more use");
    drop((pmi, server));
}

#[test]
fn lies_are_named() {
    let bad = |changes: &[(usize, &str)], words: &[&str]| {
        let error = but(changes).unwrap_err();
        assert!(!matches!(error, WireupError::Late { .. }), "{changes:?}: {error}");
        let said = error.to_string();
        assert!(words.iter().all(|word| said.contains(word)), "{changes:?}: {said}");
        assert!(said.lines().count() == 1 && said.len() < 400, "{changes:?}: {said}");
    };
    // Versions.
    bad(&[(0, "cmd=response_to_init pmi_version=2 pmi_subversion=0 rc=-1\n")], &["version \"2\""]);
    bad(&[(0, "cmd=response_to_init pmi_version=1 rc=-1\n")], &["rc=-1", "cmd=init"]);
    // Limits that carry nothing, or are none.
    for max in ["0", "31", "-64", "x", "", "99999999999999999999"] {
        bad(&[(1, &format!("cmd=maxes keylen_max={max} vallen_max=1024\n"))], &["maxes"]);
        bad(&[(1, &format!("cmd=maxes keylen_max=64 vallen_max={max}\n"))], &["maxes"]);
    }
    bad(&[(1, "cmd=maxes\n")], &["get_maxes"]);
    // Stores without a name.
    bad(&[(2, "cmd=my_kvsname\n")], &["my_kvsname"]);
    bad(&[(2, "cmd=my_kvsname kvsname=\n")], &["my_kvsname"]);
    bad(&[(2, &format!("cmd=my_kvsname kvsname={}\n", "k".repeat(2000)))], &["my_kvsname"]);
    // The answer to another question, and none at all.
    for index in 0..FINE.len() {
        bad(&[(index, "cmd=dance rc=0\n")], &["cmd=dance"]);
        bad(&[(index, "\n")], &["\"\""]);
        bad(&[(index, "\u{1}\u{2}\u{7f}\u{0} \u{1b}[31m\n")], &["\\u{"]);
        let other = FINE[(index + 3) % FINE.len()];
        bad(&[(index, other)], &[other.split(' ').next().unwrap().trim()]);
    }
    bad(&[(3, "cmd=put_result rc=-1 msg=duplicate_key\n")], &["duplicate_key"]);
    bad(&[(4, "cmd=barrier_out rc=-1\n")], &["barrier"]);
    // Values.
    bad(
        &[(5, "cmd=get_result rc=-1 msg=key_not_found value=unknown\n")],
        &["process 1 published no card"],
    );
    bad(&[(5, "cmd=get_result rc=0\n")], &["get_result"]);
    for value in ["theirs", ":theirs", "0:theirs", "4097:theirs", "-1:x"] {
        let line = format!("cmd=get_result rc=0 value={value}\n");
        bad(&[(5, &line)], &["process 1 published as card cannot be put together"]);
    }
}

#[test]
fn an_introduction_that_makes_no_sense() {
    let introduced = |answers: &'static str| {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(answers.as_bytes()).unwrap();
        let error = Pmi1::introduce(ours.into(), 3, None, SHORT).unwrap_err();
        drop(theirs);
        error
    };
    for answers in [
        "cmd=dance\n",
        "cmd=initack rc=-1\n",
        "cmd=initack\ncmd=set size=two\n",
        "cmd=initack\ncmd=set size=2\ncmd=set rank=2\ncmd=set debug=0\n",
        "cmd=initack\ncmd=set size=0\ncmd=set rank=0\ncmd=set debug=0\n",
        "cmd=initack\ncmd=set size=4294967296\n",
        "cmd=initack\ncmd=set rank=1\n",
    ] {
        let error = introduced(answers);
        assert!(matches!(error, WireupError::BadAnswer { .. }), "{answers}: {error}");
    }
    let error = introduced("cmd=initack\ncmd=set size=2\n");
    assert!(matches!(error, WireupError::Late { doing: "initack", .. }), "{error}");
}

/// Fine answers with a few bytes changed, cut or doubled: whatever comes of it, in time, without a
/// panic.
#[test]
fn noise() {
    let seed: u64 = match std::env::var("GAPLESS_SEED") {
        Ok(text) => text.parse().expect("GAPLESS_SEED is a number"),
        Err(_) => std::hash::RandomState::new().hash_one(0) % 1_000_000,
    };
    println!("GAPLESS_SEED={seed}");
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = move |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        usize::try_from(state % below as u64).unwrap()
    };
    // A client that fails leaves its end open, and so does the server: two descriptors of this process.
    let allowed = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let open = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count) as u64;
    for _ in 0..300.min(allowed.saturating_sub(open) / 4) {
        let mut answers: Vec<Vec<u8>> = FINE.iter().map(|line| line.as_bytes().to_vec()).collect();
        for _ in 0..=next(3) {
            let chosen = next(answers.len());
            let answer = &mut answers[chosen];
            let at = next(answer.len());
            match next(4) {
                0 => answer[at] = u8::try_from(next(256)).unwrap(),
                // Cut, but with its end: silence is tried elsewhere, and takes its time.
                1 => drop(answer.splice(at.., *b"\n")),
                2 => answer.extend_from_within(at..),
                _ => answer.insert(at, b"= \n\r\0\xff"[next(6)]),
            }
            if answer.last() != Some(&b'\n') {
                answer.push(b'\n');
            }
        }
        let _ = with_answers(SHORT, answers);
    }
}

/// A PMI-1 server over TCP that serves a job well, except that its fences wait for the dead, too.
pub(crate) struct Patient {
    place: String,
}

#[derive(Default)]
struct KeyTable {
    values: HashMap<String, String>,
    waiting: Vec<TcpStream>,
}

impl Patient {
    /// Serves so many processes, each in a thread that ends with its connection.
    pub(crate) fn start(size: usize) -> Patient {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let place = listener.local_addr().unwrap().to_string();
        let keys = Arc::new(Mutex::new(KeyTable::default()));
        std::thread::spawn(move || {
            for stream in listener.incoming().take(size) {
                let (stream, keys) = (stream.unwrap(), Arc::clone(&keys));
                std::thread::spawn(move || Patient::serve(&stream, size, &keys));
            }
        });
        Patient { place }
    }

    /// Host and port, for `PMI_PORT`.
    pub(crate) fn place(&self) -> &str {
        &self.place
    }

    fn serve(stream: &TcpStream, size: usize, keys: &Mutex<KeyTable>) {
        for line in BufReader::new(stream).lines() {
            let Ok(line) = line else { return };
            let word = |key: &str| {
                let mut words = line.split(' ').filter_map(|word| word.split_once('='));
                words.find(|(name, _)| *name == key).map_or("", |(_, value)| value).to_owned()
            };
            let mut keys = keys.lock().unwrap();
            let answer = match &*word("cmd") {
                "initack" => format!(
                    "cmd=initack\ncmd=set size={size}\ncmd=set rank={}\ncmd=set debug=0\n",
                    word("pmiid")
                ),
                "init" => FINE[0].to_owned(),
                "get_maxes" => FINE[1].to_owned(),
                "get_my_kvsname" => format!("cmd=my_kvsname kvsname=kvs_{}\n", std::process::id()),
                "put" => {
                    keys.values.insert(word("key"), word("value"));
                    FINE[3].to_owned()
                }
                "get" => match keys.values.get(&word("key")) {
                    Some(value) => format!("cmd=get_result rc=0 value={value}\n"),
                    None => "cmd=get_result rc=-1\n".to_owned(),
                },
                "barrier_in" => {
                    keys.waiting.push(stream.try_clone().unwrap());
                    if keys.waiting.len() == size {
                        for mut stream in std::mem::take(&mut keys.waiting) {
                            let _ = stream.write_all(b"cmd=barrier_out\n");
                        }
                    }
                    String::new()
                }
                _ => FINE[7].to_owned(),
            };
            let mut stream = stream;
            if stream.write_all(answer.as_bytes()).is_err() {
                return;
            }
        }
    }
}

/// The end of a barrier comes between a question and its answer, and a barrier that was given up ends later.
#[test]
fn answers_and_the_end_of_a_barrier_cross() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let server = std::thread::spawn(move || {
        let mut lines = BufReader::new(theirs.try_clone().unwrap()).lines();
        let write = |text: &str| (&theirs).write_all(text.as_bytes()).unwrap();
        for answer in &FINE[..3] {
            lines.next().unwrap().unwrap();
            write(answer);
        }
        let mut barriers = 0;
        while let Some(Ok(line)) = lines.next() {
            if line == "cmd=barrier_in" {
                barriers += 1;
            } else if barriers == 1 && line.contains(".first") {
                write("cmd=barrier_out\ncmd=get_result rc=0 value=1:one\n");
            } else if barriers == 2 && line.contains(".second") {
                write("cmd=get_result rc=0 value=1:two\ncmd=barrier_out\n");
            } else {
                write("cmd=get_result rc=0 value=1:three\n");
            }
        }
    });
    let mut pmi = Pmi1::start(ours.into(), 0, 2, None, LONG).unwrap();
    let questions = Questions::default();
    assert_eq!(questions.ask(1, "first"), None);
    pmi.fence_answering(&|| true, &questions).unwrap();
    assert_eq!(questions.ask(1, "first"), Some(Ok("one".to_owned())));
    let given_up = pmi.fence_answering(&|| false, &questions);
    assert_eq!(given_up, Err(WireupError::GivenUp));
    assert_eq!(pmi.get(1, "second").as_deref(), Ok("two"));
    assert_eq!(pmi.get(1, "third").as_deref(), Ok("three"), "behind the end of the barrier");
    let again = pmi.fence_answering(&|| true, &questions).unwrap_err();
    assert!(matches!(again, WireupError::LauncherGone { .. }), "{again}");
    drop((pmi, server));
}
