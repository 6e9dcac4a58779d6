//! `gapless report`: reports of measurements as one HTML page, which opens without a network.

use super::failure::Failure;
use super::{check_writable, say};
use gapless_report::{Document, FileError, html, write_atomically};
use std::path::PathBuf;
use std::process::ExitCode;

/// Which reports, and where to write the page.
#[derive(Debug, clap::Args)]
pub(super) struct Report {
    /// What `--json` of a verb wrote, or an experiment
    #[arg(required = true, value_name = "FILE.json")]
    files: Vec<PathBuf>,
    /// Write the page to this file
    #[arg(short, long, value_name = "FILE.html", default_value = "report.html")]
    output: PathBuf,
    /// The page's heading
    #[arg(long, value_name = "TEXT", default_value = "Gapless: measurements")]
    title: String,
}

impl Report {
    pub(super) fn run(self) -> Result<ExitCode, Failure> {
        check_writable("--output", &self.output)?;
        let read = |path: &PathBuf| -> Result<(String, Document), FileError> {
            Ok((path.display().to_string(), Document::read_json(path)?))
        };
        let documents = self.files.iter().map(read).collect::<Result<Vec<_>, _>>()?;
        let plot = |source| FileError::Plot { path: self.output.clone(), source };
        let page = html(&self.title, &documents).map_err(plot)?;
        write_atomically(&self.output, page.as_bytes())?;
        say(&format!("written to {}\n", self.output.display()))?;
        Ok(ExitCode::SUCCESS)
    }
}
