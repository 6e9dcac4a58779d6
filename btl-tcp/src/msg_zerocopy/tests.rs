//! Buffers and notices of one connection.

use super::*;
use crate::TcpConfig;
use crate::burst::Next;
use crate::outbound::Outbound;
use crate::socket::Socket;
use crate::tests::{LOOPBACK_V4, Patience, config};
use gapless_btl::pool::HeapPool;
use gapless_btl::{AmTag, PeerId, Token};
use gapless_mem::fake::FakeDevice;
use rustix::fd::OwnedFd;
use rustix::net::{
    AddressFamily, Protocol, RawProtocol, RecvFlags, SocketFlags, SocketType, bind, connect, recv,
    socket_with,
};
use std::io::Read;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::Arc;

/// A connection over loopback.
fn connected() -> (Connection, TcpStream) {
    let listener = TcpListener::bind((LOOPBACK_V4, 0)).unwrap();
    let at = listener.local_addr().unwrap();
    let here = TcpStream::connect(at).unwrap();
    here.set_nonblocking(true).unwrap();
    let (there, _) = listener.accept().unwrap();
    (Connection::bare(Socket::of(OwnedFd::from(here), at)), there)
}

/// Hears until all notices have come.
fn hear_all(msg_zerocopy: &mut MsgZerocopy, connection: &Connection) {
    let patience = Patience::new();
    while msg_zerocopy.awaits_notices() {
        msg_zerocopy.hear(connection);
        patience.tick("notices");
    }
}

#[test]
fn a_buffer_is_used_again_only_after_its_notice() {
    let (connection, mut there) = connected();
    let mut msg_zerocopy = MsgZerocopy::new(&connection, ZerocopyManner::Always, 16);
    let pool = HeapPool::new(1, 100_000);
    for round in 0..20u8 {
        let mut buffer = pool.buffer(5_000).unwrap();
        buffer.fill(round);
        let (number, written) = msg_zerocopy.send(&connection, &buffer).unwrap().unwrap();
        assert_eq!((number, written), (Some(u64::from(round)), 5_000), "there is room");
        msg_zerocopy.hold(number, buffer);
        assert!(msg_zerocopy.awaits_notices() && pool.buffer(1).is_none());
        let mut came = [0; 5_000];
        there.read_exact(&mut came).unwrap();
        assert_eq!(came, [round; 5_000]);
        assert!(pool.buffer(1).is_none(), "nobody has heard the notice");
        hear_all(&mut msg_zerocopy, &connection);
        assert!(pool.buffer(1).is_some());
    }
    assert_eq!(msg_zerocopy.counts.without_copy + msg_zerocopy.counts.copied, 20);
    // Whatever is held for a send that is over, or for none, is free at once.
    msg_zerocopy.hold(Some(19), pool.buffer(1).unwrap());
    msg_zerocopy.hold(None, pool.buffer(1).unwrap());
    assert!(pool.buffer(1).is_some());
}

#[test]
fn buffers_without_a_notice_are_never_used_again() {
    let (connection, _there) = connected();
    let (pool, other) = (HeapPool::new(1, 100), HeapPool::new(1, 100));
    let mut msg_zerocopy = MsgZerocopy::new(&connection, ZerocopyManner::Always, 16);
    // As if the system were slow to tell.
    let numbers = [(); 2].map(|()| msg_zerocopy.ledger.sent());
    msg_zerocopy.hold(Some(numbers[0]), other.buffer(7).unwrap());
    msg_zerocopy.hold(Some(numbers[1]), pool.buffer(7).unwrap());
    msg_zerocopy.ledger.told(0, 0);
    assert!(!msg_zerocopy.hear(&connection), "the system has said nothing");
    assert!(pool.buffer(1).is_none() && other.buffer(1).is_some());
    drop((msg_zerocopy, connection));
    assert!(pool.buffer(1).is_none(), "the system may still read it");
}

/// Nobody uses them again; but when the link is gone, their memory is, too.
#[test]
fn a_link_that_ends_without_notices_keeps_no_memory() {
    let (connection, _there) = connected();
    let msg_zerocopy = MsgZerocopy::new(&connection, ZerocopyManner::UnlessCopied, 2);
    let mut outbound = Outbound::new(&few(), false, msg_zerocopy);
    let fake = Arc::new(FakeDevice::new(0));
    outbound.attach(&(Arc::clone(&fake) as _)).unwrap();
    let buffer = outbound.long_buffers().buffer(1).unwrap();
    let number = outbound.msg_zerocopy.pretend_sent();
    outbound.msg_zerocopy.hold(Some(number), buffer);
    assert_eq!(fake.registered().len(), 1);
    drop((outbound, connection));
    assert!(fake.registered().is_empty(), "a device is told before memory is unmapped");
}

/// Two long buffers.
fn few() -> TcpConfig {
    TcpConfig { buffers: 2, fragment_bytes: 16 << 20, ..config(0, LOOPBACK_V4) }
}

/// How many long buffers are free.
fn free(pool: &HeapPool) -> usize {
    let all: Vec<Buffer> = std::iter::from_fn(|| pool.buffer(1)).collect();
    all.len()
}

/// Messages in the queue, a part of which has left, and messages that are retained belong to the system as well.
#[test]
fn a_link_that_ends_takes_nothing_from_the_system() {
    for (retains, len) in [(false, 10_000), (true, 10_000), (false, 16 << 20), (true, 16 << 20)] {
        let (mut connection, _there) = connected();
        let msg_zerocopy = MsgZerocopy::new(&connection, ZerocopyManner::Always, 2);
        let mut outbound = Outbound::new(&few(), retains, msg_zerocopy);
        let slot = outbound.reserve(PeerId(0), len).unwrap();
        let buffer = outbound.open(slot);
        outbound.push(AmTag(1), buffer, Token::NONE, 0);
        outbound.flush(&mut connection, Next::Leaves, &mut VecDeque::new()).unwrap();
        if outbound.msg_zerocopy.counts.refused > 0 {
            let why = "the system has no memory for it (`ulimit -l`): links that end";
            return gapless_btl_testkit::conformance::skip("gapless-btl-tcp zerocopy", why);
        }
        assert!(len > 10_000 || outbound.is_empty());
        assert!(outbound.msg_zerocopy.awaits_notices());
        let pool = outbound.long_buffers();
        assert_eq!(free(&pool), 1);
        drop(outbound);
        assert_eq!(free(&pool), 1, "the system has not told of the other");
    }
}

#[test]
fn what_the_system_refuses_is_copied() {
    let (connection, _there) = connected();
    let mut msg_zerocopy = MsgZerocopy::new(&connection, ZerocopyManner::UnlessCopied, 16);
    assert!(msg_zerocopy.takes(WORTH_BYTES) && !msg_zerocopy.takes(WORTH_BYTES - 1));
    let number = msg_zerocopy.ledger.sent();
    msg_zerocopy.refuse = true;
    assert_eq!(msg_zerocopy.send(&connection, &[1; 9]), Ok(None));
    assert!(!msg_zerocopy.takes(WORTH_BYTES), "not beside the one there is");
    msg_zerocopy.ledger.told(0, 0);
    assert!(msg_zerocopy.ledger.is_over(number) && msg_zerocopy.takes(WORTH_BYTES));
    // Not even one.
    msg_zerocopy.refuse = true;
    assert_eq!(msg_zerocopy.send(&connection, &[1; 9]), Ok(None));
    assert!(!msg_zerocopy.takes(WORTH_BYTES) && msg_zerocopy.counts.refused == 2);
    // But later perhaps.
    let pool = HeapPool::new(1, WORTH_BYTES);
    let mut copied = 0;
    while !msg_zerocopy.takes(WORTH_BYTES) {
        msg_zerocopy.hold(None, pool.buffer(WORTH_BYTES - 1).expect("it is free at once"));
        msg_zerocopy.hold(None, pool.buffer(WORTH_BYTES).expect("it is free at once"));
        copied += 1;
        assert!(copied < 10_000);
    }
    assert!(copied > 10);
}

/// What the system acknowledges raises a bound that a refusal has lowered.
#[test]
fn what_a_refusal_took_comes_back_with_notices() {
    let (connection, mut there) = connected();
    let mut msg_zerocopy = MsgZerocopy::new(&connection, ZerocopyManner::Always, 4);
    msg_zerocopy.ledger.sent();
    msg_zerocopy.refuse = true;
    assert_eq!(msg_zerocopy.send(&connection, &[1; 9]), Ok(None));
    msg_zerocopy.ledger.told(0, 0);
    msg_zerocopy.ledger = Ledger::default();
    let mut most = |msg_zerocopy: &mut MsgZerocopy| {
        let mut numbers = Vec::new();
        while msg_zerocopy.takes(9) {
            numbers.push(msg_zerocopy.send(&connection, &[1; 9]).unwrap().unwrap().0.unwrap());
        }
        there.read_exact(&mut vec![0; 9 * numbers.len()]).unwrap();
        hear_all(msg_zerocopy, &connection);
        numbers.len()
    };
    assert_eq!(most(&mut msg_zerocopy), 1);
    let patience = Patience::new();
    while most(&mut msg_zerocopy) < 2 {
        patience.tick("the bound to rise");
    }
    assert_eq!(most(&mut msg_zerocopy), 2, "no higher than it was");
}

#[test]
fn half_of_the_buffers_wait_for_notices_at_most() {
    let (connection, _there) = connected();
    for (buffers, most) in [(2, 1), (3, 1), (16, 8)] {
        let mut msg_zerocopy = MsgZerocopy::new(&connection, ZerocopyManner::UnlessCopied, buffers);
        let sent = std::iter::from_fn(|| {
            msg_zerocopy.takes(WORTH_BYTES).then(|| msg_zerocopy.ledger.sent())
        });
        assert_eq!(sent.count(), most);
    }
    let never = MsgZerocopy::new(&connection, ZerocopyManner::Never, 16);
    assert!(!never.takes(1 << 20));
}

/// Whoever runs in a namespace with a device that throws away what it is given, and copies nothing.
const ALONE: &str = "GAPLESS_TCP_TEST_ALONE";

/// Runs a test of this file there, as another process, or says that this machine has no such thing.
fn run_alone(test: &str) {
    let skip = |why| gapless_btl_testkit::conformance::skip("gapless-btl-tcp zerocopy", why);
    let root = Command::new("unshare").args(["-n", "true"]).status();
    if !root.is_ok_and(|status| status.success()) {
        return skip("no network namespaces: where the system does not copy");
    }
    let script = "ip link add z0 type ifb && ip addr add 10.99.0.1/24 dev z0 && ip link set z0 up && \
                  ip neigh add 10.99.0.2 lladdr 02:00:00:00:00:02 dev z0 || exit 77; exec \"$@\"";
    let output = Command::new("unshare")
        .args(["-n", "sh", "-c", script, "sh"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", &format!("msg_zerocopy::tests::{test}"), "--nocapture"])
        .env(ALONE, "1")
        .output()
        .unwrap();
    if output.status.code() == Some(77) {
        return skip("no `ip`, or no device `ifb`: where the system does not copy");
    }
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && text.contains("1 passed"), "{output:?}");
}

/// A connection through that device, which nobody at the other end has agreed to (`TCP_REPAIR`): nothing is ever
/// acknowledged. The other end has room for so many bytes.
fn lonely(port: u16, window: i32) -> Connection {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let fd = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None).unwrap();
    let [here, there] = [1, 2].map(|last| SocketAddr::from(([10, 99, 0, last], port)));
    assert!(calls::set(&fd, libc::IPPROTO_TCP, libc::TCP_REPAIR, &[1]), "root may do this");
    bind(&fd, &here).unwrap();
    connect(&fd, &there).unwrap();
    // struct tcp_repair_window: what may be sent, and has to be received, in bytes; and sequence numbers.
    let window = [0, window, window, 65_535, 0];
    assert!(calls::set(&fd, libc::IPPROTO_TCP, libc::TCP_REPAIR_WINDOW, &window));
    assert!(calls::set(&fd, libc::IPPROTO_TCP, libc::TCP_REPAIR, &[0]));
    assert!(calls::set(&fd, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, &[64 << 20]));
    Connection::bare(Socket::of(fd, there))
}

/// What the system may read again is given back when the link is lost.
#[test]
fn where_the_system_does_not_copy_it_says_so() {
    if std::env::var_os(ALONE).is_none() {
        run_alone("where_the_system_does_not_copy_it_says_so");
        return;
    }
    let mut connection = lonely(5_555, 0);
    let msg_zerocopy = MsgZerocopy::new(&connection, ZerocopyManner::UnlessCopied, 2);
    let mut outbound = Outbound::new(&few(), false, msg_zerocopy);
    send(&mut outbound, &mut connection, 50_000);
    outbound.msg_zerocopy.hear(&connection);
    let pool = outbound.long_buffers();
    assert!(outbound.msg_zerocopy.awaits_notices() && free(&pool) == 1, "nobody acknowledges it");
    assert!(!outbound.end(&connection));
    assert_eq!(free(&pool), 2, "the system has thrown it away");
    let counts = MsgZerocopyCounts { without_copy: 1, ..MsgZerocopyCounts::default() };
    assert_eq!(outbound.msg_zerocopy.counts, counts);
    assert!(outbound.msg_zerocopy.is_on());
}

/// What the system sends once more after a link has ended is what was sent, though the memory is gone, and mapped again
/// for something else.
#[test]
fn the_system_keeps_the_pages_of_a_link_that_has_ended() {
    const ETH_P_ALL: u16 = 3;
    const LEN: usize = 40_000;
    if std::env::var_os(ALONE).is_none() {
        run_alone("the_system_keeps_the_pages_of_a_link_that_has_ended");
        return;
    }
    let all = RawProtocol::new(ETH_P_ALL.to_be().into()).map(Protocol::from_raw);
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let tap = socket_with(AddressFamily::PACKET, SocketType::RAW, flags, all).unwrap();
    let mut connection = lonely(5_556, 65_535);
    let mut outbound = {
        let msg_zerocopy = MsgZerocopy::new(&connection, ZerocopyManner::UnlessCopied, 2);
        Outbound::new(&few(), false, msg_zerocopy)
    };
    let pool = outbound.long_buffers();
    pool.buffer(LEN).unwrap().fill(0xa5);
    send(&mut outbound, &mut connection, LEN);
    assert!(outbound.msg_zerocopy.awaits_notices() && outbound.msg_zerocopy.counts.refused == 0);
    // What left at once.
    let mut packet = vec![0; 100_000];
    while recv(&tap, &mut packet[..], RecvFlags::DONTWAIT).is_ok() {}
    drop((pool, outbound, connection));
    // Somebody else has memory, there perhaps, and writes.
    let others = [(); 8].map(|()| {
        let mut buffer = HeapPool::mapped(1, few().fragment_bytes).buffer(10 * LEN).unwrap();
        buffer.fill(0x11);
        buffer
    });
    // The first bytes leave once more, since nobody has acknowledged them.
    let (mut seen, patience) = (0, Patience::new());
    while seen < 500 {
        let Ok((len, _)) = recv(&tap, &mut packet[..], RecvFlags::DONTWAIT) else {
            patience.tick("what is sent once more");
            continue;
        };
        let body = packet[..len].get(14 + 20 + 20..).unwrap_or_default();
        seen += body.iter().filter(|&&byte| byte == 0xa5).count();
        assert!(!body.contains(&0x11), "that was never sent");
    }
    drop(others);
}

/// Sends a message, for all of which there is room.
fn send(outbound: &mut Outbound, connection: &mut Connection, len: usize) {
    let slot = outbound.reserve(PeerId(0), len).unwrap();
    let buffer = outbound.open(slot);
    outbound.push(AmTag(1), buffer, Token::NONE, 0);
    outbound.flush(connection, Next::Leaves, &mut VecDeque::new()).unwrap();
    assert!(outbound.is_empty(), "there is room");
}
