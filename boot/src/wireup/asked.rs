//! The socket by which a launcher asks, shortly before it ends the job, what this process waits for.
//!
//! The launcher leaves a descriptor and names it in the environment, by its number and by the socket's number in the
//! system. Programs that a process starts inherit the variable, but not the descriptor: there, the number may be
//! another file's. Only the very socket that the launcher has made is taken over.

use super::line_stream;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::OnceLock;

/// The variable that names the socket on which a launcher asks its processes questions.
pub const ASKED: &str = "GAPLESS_ASK_FD";

/// The value of [`ASKED`] for a socket that a launcher leaves to a process.
pub fn name(socket: impl AsFd) -> Option<String> {
    let number = socket.as_fd().as_raw_fd();
    Some(format!("{number}:{}", line_stream::socket(number)?))
}

/// The socket on which the launcher asks this process. `None`: it asks nothing.
pub fn asked() -> Option<&'static OwnedFd> {
    static SOCKET: OnceLock<Option<OwnedFd>> = OnceLock::new();
    SOCKET.get_or_init(|| take_over(find(&std::env::var(ASKED).ok()?)?)).as_ref()
}

/// The descriptor of the socket that a text names, if it is that socket's.
fn find(text: &str) -> Option<u32> {
    let (number, socket) = text.split_once(':')?;
    let number = number.parse::<u32>().ok()?;
    (line_stream::socket(i32::try_from(number).ok()?) == Some(socket.parse().ok()?))
        .then_some(number)
}

fn take_over(number: u32) -> Option<OwnedFd> {
    // SAFETY: the number is that of the socket that the launcher has left to this process, no other file's: it made the
    // socket, and named it. Nothing but this line, which runs once, takes it over: the connection to the launcher,
    // which is taken over as well, is another socket.
    unsafe { line_stream::adopt(ASKED, number) }.ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn only_the_socket_that_was_named_is_found() {
        let (named, other) = UnixStream::pair().unwrap();
        let text = name(&named).unwrap();
        let number = u32::try_from(named.as_raw_fd()).unwrap();
        assert_eq!(find(&text), Some(number));
        let (_, socket) = text.split_once(':').unwrap();
        // Another socket has the number now, or a file, or none.
        assert_eq!(find(&format!("{}:{socket}", other.as_raw_fd())), None);
        let file = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(find(&format!("{}:{socket}", file.as_raw_fd())), None);
        assert_eq!(name(&file), None);
        for text in ["", "7", "7:", ":7", "-1:7", "99999999999:7", &format!("2000000000:{socket}")]
        {
            assert_eq!(find(text), None, "{text}");
        }
    }
}
