//! What the library has warned of, in this process.

use std::io::Write;
use std::sync::{Arc, Mutex, PoisonError};

/// Where warnings go.
#[derive(Clone, Default)]
pub(crate) struct Warnings(Arc<Mutex<Vec<u8>>>);

impl Warnings {
    /// Listens from now on, for the whole process. If `RUST_LOG` is set, it gets everything instead, on the standard
    /// error.
    pub(crate) fn hear() -> Warnings {
        if std::env::var_os("RUST_LOG").is_some() {
            let filter = tracing_subscriber::EnvFilter::from_default_env();
            tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
            return Warnings::default();
        }
        let warnings = Warnings::default();
        let to = warnings.clone();
        let listener = tracing_subscriber::fmt()
            .with_max_level(tracing_subscriber::filter::LevelFilter::WARN)
            .with_ansi(false)
            .with_writer(move || to.clone())
            .finish();
        tracing_subscriber::util::SubscriberInitExt::try_init(listener).expect("the only listener");
        warnings
    }

    /// The lines with these words.
    pub(crate) fn with(&self, words: &str) -> Vec<String> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let text = String::from_utf8_lossy(&all).into_owned();
        text.lines().filter(|line| line.contains(words)).map(str::to_owned).collect()
    }
}

impl Write for Warnings {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
