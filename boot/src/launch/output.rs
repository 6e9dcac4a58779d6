//! The processes' output, a whole line at a time, so that those of several ranks do not mix.
//!
//! What is ready waits until the launcher's own output takes it. Once [`ROOM`] bytes of a stream wait, nothing more of
//! it is read from the processes, who wait in turn. So a slow reader holds up no signal and no other process's end. The
//! most that waits is `ROOM`, and for each process a read (32 KiB) that was begun before and a line that is not ended.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

/// What becomes of the output of a job's processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Output {
    /// They write to the launcher's outputs themselves, and know whether those are terminals. Lines of several processes
    /// may mix.
    #[default]
    Direct,
    /// The launcher passes on whole lines. A line that is not ended is passed on after a fifth of a second, one of more
    /// than 64 KiB in pieces. No byte is changed or added.
    Lines,
    /// The same with the rank before each line; the last line of each process is ended.
    Prefixed,
}

/// Which of a process's two outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stream {
    Out,
    Err,
}

/// Both.
pub(super) const STREAMS: [Stream; 2] = [Stream::Out, Stream::Err];

/// A line that grows beyond this many bytes is passed on in pieces.
const LINE_BYTES_MAX: usize = 64 << 10;

/// How long the begin of a line waits for its end.
const PATIENCE: Duration = Duration::from_millis(200);

/// Bytes of a stream that wait to be written, before nothing more is read from the processes.
const ROOM: usize = 256 << 10;

/// What a pipe takes without a wait if it takes anything (`PIPE_BUF`).
const AT_ONCE: usize = 4096;

/// What has come of the current line of one process and stream.
#[derive(Clone, Debug, Default)]
struct PartialLine {
    bytes: Vec<u8>,
    /// When it is passed on without its end.
    due: Option<Instant>,
}

/// Lines on their way.
pub(super) struct Outputs {
    lines: Vec<[PartialLine; 2]>,
    /// What can be written.
    ready: [Vec<u8>; 2],
    /// Characters of a rank, if it stands before each line.
    mark: Option<usize>,
}

impl Outputs {
    pub(super) fn new(ranks: u32, output: Output) -> Outputs {
        let width = ranks.saturating_sub(1).to_string().len();
        Outputs {
            lines: (0..ranks).map(|_| Default::default()).collect(),
            ready: Default::default(),
            mark: (output == Output::Prefixed).then_some(width),
        }
    }

    /// Takes what `rank` wrote; what is not a whole line waits.
    pub(super) fn take(&mut self, rank: usize, stream: Stream, bytes: &[u8], now: Instant) {
        let line = &mut self.lines[rank][stream as usize];
        let ready = &mut self.ready[stream as usize];
        for piece in bytes.split_inclusive(|&byte| byte == b'\n') {
            line.bytes.extend_from_slice(piece);
            if line.bytes.ends_with(b"\n") || line.bytes.len() >= LINE_BYTES_MAX {
                pass_on(ready, line, rank, self.mark);
            } else if self.mark.is_none() {
                line.due.get_or_insert(now + PATIENCE);
            }
        }
    }

    /// Lets go of what is left of `rank`'s last line.
    pub(super) fn end(&mut self, rank: usize, stream: Stream) {
        let line = &mut self.lines[rank][stream as usize];
        if !line.bytes.is_empty() {
            pass_on(&mut self.ready[stream as usize], line, rank, self.mark);
        }
    }

    /// Lets go of lines that have waited long enough for their ends.
    pub(super) fn keep_time(&mut self, now: Instant) {
        for (rank, lines) in self.lines.iter_mut().enumerate() {
            for (line, ready) in lines.iter_mut().zip(&mut self.ready) {
                if line.due.is_some_and(|due| due <= now) {
                    pass_on(ready, line, rank, self.mark);
                }
            }
        }
    }

    /// When [`keep_time`](Outputs::keep_time) has something to do.
    pub(super) fn due(&self) -> Option<Instant> {
        self.lines.iter().flatten().filter_map(|line| line.due).min()
    }

    /// Whether something is to be written.
    pub(super) fn waits(&self, stream: Stream) -> bool {
        !self.ready[stream as usize].is_empty()
    }

    /// Whether nothing more should be read for now.
    pub(super) fn is_full(&self, stream: Stream) -> bool {
        self.ready[stream as usize].len() >= ROOM
    }

    /// Writes what `to` takes without a wait.
    pub(super) fn write(&mut self, stream: Stream, to: BorrowedFd<'_>) -> io::Result<()> {
        let ready = &mut self.ready[stream as usize];
        let mut written = 0;
        while written < ready.len() && has_room(to)? {
            let piece = &ready[written..];
            match rustix::io::write(to, &piece[..piece.len().min(AT_ONCE)]) {
                Ok(len) => written += len,
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => break,
                Err(error) => return Err(error.into()),
            }
        }
        ready.drain(..written);
        Ok(())
    }
}

/// Where a stream goes.
pub(super) fn target(stream: Stream) -> impl AsFd {
    /// One of two types.
    enum Either {
        Out(io::Stdout),
        Err(io::Stderr),
    }
    impl AsFd for Either {
        fn as_fd(&self) -> BorrowedFd<'_> {
            match self {
                Either::Out(out) => out.as_fd(),
                Either::Err(err) => err.as_fd(),
            }
        }
    }
    match stream {
        Stream::Out => Either::Out(io::stdout()),
        Stream::Err => Either::Err(io::stderr()),
    }
}

/// Moves a line to what can be written.
fn pass_on(ready: &mut Vec<u8>, line: &mut PartialLine, rank: usize, mark: Option<usize>) {
    if let Some(width) = mark {
        ready.extend_from_slice(format!("[{rank:>width$}] ").as_bytes());
    }
    ready.append(&mut line.bytes);
    line.due = None;
    if mark.is_some() && !ready.ends_with(b"\n") {
        ready.push(b'\n');
    }
}

/// Whether a write of [`AT_ONCE`] bytes would not wait; also if it would fail.
fn has_room(to: BorrowedFd<'_>) -> io::Result<bool> {
    let mut one = [PollFd::from_borrowed_fd(to, PollFlags::OUT)];
    match poll(&mut one, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) {
        Ok(ready) => Ok(ready > 0),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What can be written of standard output; it is taken away.
    fn ready(outputs: &mut Outputs) -> Vec<u8> {
        std::mem::take(&mut outputs.ready[0])
    }

    #[test]
    fn lines_come_whole_with_their_rank() {
        let mut outputs = Outputs::new(12, Output::Prefixed);
        let now = Instant::now();
        outputs.take(3, Stream::Out, b"ab", now);
        outputs.take(4, Stream::Out, b"x\n", now);
        outputs.take(3, Stream::Out, b"c\nd\ne", now);
        assert_eq!(ready(&mut outputs), b"[ 4] x\n[ 3] abc\n[ 3] d\n");
        outputs.take(3, Stream::Err, b"\n", now);
        assert_eq!(outputs.ready[1], b"[ 3] \n");
        // However long it takes.
        assert_eq!(outputs.due(), None);
        outputs.end(3, Stream::Err);
        outputs.end(3, Stream::Out);
        assert_eq!(ready(&mut outputs), b"[ 3] e\n");
    }

    #[test]
    fn without_ranks_no_byte_is_added() {
        let mut outputs = Outputs::new(2, Output::Lines);
        let now = Instant::now();
        outputs.take(0, Stream::Out, b"a\xff\0", now);
        outputs.take(1, Stream::Out, b"c\nd", now);
        outputs.take(0, Stream::Out, b"b\r\n\n", now);
        assert_eq!(ready(&mut outputs), b"c\na\xff\0b\r\n\n");
        outputs.end(1, Stream::Out);
        assert_eq!(ready(&mut outputs), b"d");
    }

    #[test]
    fn the_begin_of_a_line_waits_a_while_for_its_end() {
        let mut outputs = Outputs::new(2, Output::Lines);
        let begin = Instant::now();
        outputs.take(0, Stream::Out, b"who are you? ", begin);
        outputs.take(1, Stream::Out, b".", begin + PATIENCE / 2);
        outputs.take(0, Stream::Out, b"say ", begin + PATIENCE / 2);
        assert_eq!(outputs.due(), Some(begin + PATIENCE));
        outputs.keep_time(begin + PATIENCE);
        assert_eq!(ready(&mut outputs), b"who are you? say ");
        assert_eq!(outputs.due(), Some(begin + PATIENCE / 2 + PATIENCE));
    }

    #[test]
    fn an_endless_line_is_passed_on_in_pieces() {
        for (output, more) in [(Output::Prefixed, 5), (Output::Lines, 0)] {
            let mut outputs = Outputs::new(1, output);
            outputs.take(0, Stream::Out, &vec![b'x'; LINE_BYTES_MAX], Instant::now());
            assert_eq!(ready(&mut outputs).len(), LINE_BYTES_MAX + more);
        }
    }

    #[test]
    fn what_nobody_reads_is_kept_and_bounded() {
        let (reader, writer) = io::pipe().unwrap();
        let mut outputs = Outputs::new(1, Output::Lines);
        let text: Vec<u8> = (0..ROOM).map(|at| at.to_le_bytes()[0]).collect();
        outputs.take(0, Stream::Out, &text, Instant::now());
        outputs.end(0, Stream::Out);
        assert!(outputs.is_full(Stream::Out));
        outputs.write(Stream::Out, writer.as_fd()).unwrap();
        assert!(outputs.waits(Stream::Out), "a pipe takes less than {ROOM} bytes");
        let mut found = Vec::new();
        while outputs.waits(Stream::Out) {
            let mut bytes = vec![0; AT_ONCE];
            let len = rustix::io::read(&reader, &mut bytes[..]).unwrap();
            found.extend_from_slice(&bytes[..len]);
            outputs.write(Stream::Out, writer.as_fd()).unwrap();
        }
        drop(writer);
        io::Read::read_to_end(&mut { reader }, &mut found).unwrap();
        assert!(found == text);
    }

    #[test]
    fn a_reader_that_is_gone_is_an_error() {
        let (reader, writer) = io::pipe().unwrap();
        drop(reader);
        let mut outputs = Outputs::new(1, Output::Lines);
        outputs.take(0, Stream::Out, b"x\n", Instant::now());
        let error = outputs.write(Stream::Out, writer.as_fd()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    }
}
