//! Output with the rank before each line: whole lines at a time, so that ranks do not mix.

use std::io::{self, Write};

/// Which of a process's two outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stream {
    Out,
    Err,
}

/// A line that grows beyond this many bytes is passed on in pieces.
const LINE_BYTES_MAX: usize = 64 << 10;

/// Keeps what has come of each process's current line.
pub(super) struct Prefixer {
    partial: Vec<[Vec<u8>; 2]>,
    width: usize,
}

impl Prefixer {
    pub(super) fn new(ranks: u32) -> Prefixer {
        let partial = (0..ranks).map(|_| [Vec::new(), Vec::new()]).collect();
        Prefixer { partial, width: ranks.saturating_sub(1).to_string().len() }
    }

    /// Passes on what `rank` wrote, as far as it is whole lines.
    pub(super) fn pass(&mut self, rank: usize, stream: Stream, bytes: &[u8]) -> io::Result<()> {
        let ready = self.whole_lines(rank, stream, bytes);
        emit(stream, &ready)
    }

    /// Passes on what is left of `rank`'s last lines.
    pub(super) fn flush(&mut self, rank: usize) -> io::Result<()> {
        for stream in [Stream::Out, Stream::Err] {
            let rest = self.whole_lines(rank, stream, b"");
            emit(stream, &rest)?;
            if !self.partial[rank][stream as usize].is_empty() {
                let rest = self.whole_lines(rank, stream, b"\n");
                emit(stream, &rest)?;
            }
        }
        Ok(())
    }

    fn whole_lines(&mut self, rank: usize, stream: Stream, bytes: &[u8]) -> Vec<u8> {
        let width = self.width;
        let partial = &mut self.partial[rank][stream as usize];
        let mut ready = Vec::new();
        for piece in bytes.split_inclusive(|&byte| byte == b'\n') {
            partial.extend_from_slice(piece);
            if partial.ends_with(b"\n") || partial.len() >= LINE_BYTES_MAX {
                ready.extend_from_slice(format!("[{rank:>width$}] ").as_bytes());
                ready.append(partial);
                if !ready.ends_with(b"\n") {
                    ready.push(b'\n');
                }
            }
        }
        ready
    }
}

fn emit(stream: Stream, bytes: &[u8]) -> io::Result<()> {
    if bytes.is_empty() {
        return Ok(());
    }
    match stream {
        Stream::Out => {
            let mut out = io::stdout().lock();
            out.write_all(bytes)?;
            out.flush()
        }
        Stream::Err => io::stderr().lock().write_all(bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_whole_with_their_rank() {
        let mut prefixer = Prefixer::new(12);
        assert_eq!(prefixer.whole_lines(3, Stream::Out, b"ab"), b"");
        assert_eq!(prefixer.whole_lines(4, Stream::Out, b"x\n"), b"[ 4] x\n");
        assert_eq!(prefixer.whole_lines(3, Stream::Out, b"c\nd\ne"), b"[ 3] abc\n[ 3] d\n");
        assert_eq!(prefixer.whole_lines(3, Stream::Err, b"\n"), b"[ 3] \n");
        assert_eq!(prefixer.partial[3][0], b"e");
    }

    #[test]
    fn an_endless_line_is_passed_on_in_pieces() {
        let mut prefixer = Prefixer::new(1);
        let out = prefixer.whole_lines(0, Stream::Out, &vec![b'x'; LINE_BYTES_MAX]);
        assert_eq!(out.len(), LINE_BYTES_MAX + 5);
    }
}
