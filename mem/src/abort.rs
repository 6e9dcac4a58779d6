//! The end of the process where memory cannot be taken back: whoever went on would let two write it at once.

use std::io::Write;

/// Says why in one line on standard error, and aborts the process.
pub fn abort(why: &str) -> ! {
    // If standard error is closed, the line is lost.
    let _ = writeln!(std::io::stderr(), "gapless: {why}");
    std::process::abort()
}

/// Calls `act`; if it panics, [aborts](abort) the process: nobody may see what was left half done.
pub fn abort_on_unwind<T>(why: &str, act: impl FnOnce() -> T) -> T {
    struct Bomb<'w>(&'w str);

    impl Drop for Bomb<'_> {
        fn drop(&mut self) {
            abort(self.0);
        }
    }

    let bomb = Bomb(why);
    let value = act();
    std::mem::forget(bomb);
    value
}
