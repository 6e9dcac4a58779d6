//! `gapless run`: the local launcher, and the way to those of several hosts, with the options that people know from `mpiexec`.

mod hostfile;
mod hosts;
mod words;

use super::complain;
use super::failure::Failure;
use clap::{Args, FromArgMatches};
use gapless::coll::Level;
use gapless::launch::{
    self, BindTo, Core, Cores, Job, Launch, LaunchError, MapBy, Outcome, Output, Program,
};
use std::ffi::OsString;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// What a shell reports of a program that a closed pipe has ended: 128 + SIGPIPE.
pub(super) const SIGPIPE_EXIT: u8 = 128 + 13;

/// What to start, and how.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "gapless run -n <N> [OPTIONS] <PROGRAM> [ARGUMENT]... [: -n <N> [OPTIONS] <PROGRAM>...]..."
)]
pub(super) struct Run {
    /// How many processes (-np, too)
    #[arg(short = 'n', long = "ranks", aliases = ["np"], value_name = "N", value_parser = ranks, allow_negative_numbers = true)]
    ranks: u32,
    /// Start the job on these hosts, as in a,b or a:4,b:4, by mpiexec.hydra, prterun or mpirun, whichever is installed (-hosts, -host, too)
    #[arg(short = 'H', long, aliases = ["host"], value_name = "HOSTS")]
    hosts: Option<String>,
    /// The same hosts from a file: a line for each, as `a`, `a:4` or `a slots=4` (-machinefile, too)
    #[arg(short = 'f', long, aliases = ["machinefile", "default-hostfile"], value_name = "FILE", conflicts_with = "hosts")]
    hostfile: Option<PathBuf>,
    /// Processes on each of these hosts (-perhost, -npernode, too)
    #[arg(short = 'N', long, aliases = ["perhost", "npernode"], value_name = "N", value_parser = ranks, allow_negative_numbers = true)]
    ppn: Option<u32>,
    /// Put the rank before each line of output (-l, -prepend-rank, -tag-output, too)
    #[arg(short = 'p', short_alias = 'l', long, aliases = ["prepend-rank", "tag-output", "label"])]
    prefix: bool,
    /// Write each process's standard output to a file: %r in its name is the rank
    #[arg(long, value_name = "FILE")]
    outfile_pattern: Option<String>,
    /// The same of standard error
    #[arg(long, value_name = "FILE")]
    errfile_pattern: Option<String>,
    /// Set a variable in the processes' environment (repeatable; -env NAME VALUE, too)
    #[arg(short = 'e', long = "env", value_name = "NAME=VALUE")]
    environment: Vec<String>,
    /// Set a variable for the processes of all programs (repeatable; -genv NAME VALUE, too)
    #[arg(long = "genv", value_name = "NAME=VALUE")]
    everywhere: Vec<String>,
    /// The same as -e; without a value, the variable must be set (repeatable)
    #[arg(short = 'x', value_name = "NAME[=VALUE]")]
    exported: Vec<String>,
    /// Start the processes in this folder (-wdir, too)
    #[arg(long = "wdir", aliases = ["wd"], value_name = "DIR")]
    folder: Option<PathBuf>,
    /// What each process is kept on [default: what --map-by names, or none]
    #[arg(long, value_name = "UNIT")]
    bind_to: Option<Bind>,
    /// Give out cores one after the other, or one of each cache, NUMA node or socket in turn; on several hosts, slot
    /// fills one host after the other, and node deals ranks out over the hosts
    #[arg(long, value_name = "UNIT")]
    map_by: Option<Map>,
    /// Say on standard error where each process is kept
    #[arg(long)]
    report_bindings: bool,
    /// Do not warn if there are more processes than cores; several hosts take more than their slots
    #[arg(long)]
    oversubscribe: bool,
    /// For launchers of several hosts that ask for it
    #[arg(long, hide = true)]
    allow_run_as_root: bool,
    /// Pass on the whole environment, as is always done
    #[arg(long, aliases = ["envall"], hide = true)]
    genvall: bool,
    /// End the job with an error if it takes longer, in seconds, 1 or more
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..), allow_negative_numbers = true)]
    timeout: Option<u32>,
    /// The program and its arguments; `:` and more options begin another program of the job
    #[arg(required = true, last = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// As the option says it.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Bind {
    Core,
    #[value(alias = "l3cache")]
    L3,
    Numa,
    #[value(alias = "package")]
    Socket,
    None,
}

impl From<Bind> for BindTo {
    fn from(bind: Bind) -> BindTo {
        match bind {
            Bind::Core => BindTo::Core,
            Bind::L3 => BindTo::Group(Level::L3),
            Bind::Numa => BindTo::Group(Level::Numa),
            Bind::Socket => BindTo::Group(Level::Socket),
            Bind::None => BindTo::None,
        }
    }
}

/// As the option says it. On one host, slots and nodes in turn are cores; on several, launchers know what they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Map {
    Core,
    Slot,
    Node,
    #[value(alias = "l3cache")]
    L3,
    Numa,
    #[value(alias = "package")]
    Socket,
}

impl From<Map> for MapBy {
    fn from(map: Map) -> MapBy {
        match map {
            Map::Core | Map::Slot | Map::Node => MapBy::Core,
            Map::L3 => MapBy::Group(Level::L3),
            Map::Numa => MapBy::Group(Level::Numa),
            Map::Socket => MapBy::Group(Level::Socket),
        }
    }
}

impl From<Map> for BindTo {
    /// What processes are kept on if only the order of cores is said.
    fn from(map: Map) -> BindTo {
        match MapBy::from(map) {
            MapBy::Core => BindTo::Core,
            MapBy::Group(level) => BindTo::Group(level),
        }
    }
}

/// The groups that a place is in, in words.
fn groups_of(place: &Core) -> String {
    let known = Level::INSIDE.into_iter().filter_map(|level| Some((level, place.group(level)?)));
    let words: Vec<String> =
        known.map(|(level, number)| format!("{} {number}", level.title())).collect();
    if words.is_empty() { String::new() } else { format!(" of {}", words.join(", ")) }
}

/// The options of this verb, for who parses them.
fn command() -> clap::Command {
    // The options that every verb takes.
    let verbose = clap::Arg::new("verbose").short('v').long("verbose");
    let help = clap::Arg::new("help").short('h').long("help");
    let command = clap::Command::new("gapless run").disable_help_flag(true);
    let verbose = verbose.action(clap::ArgAction::Count);
    Run::augment_args(command.arg(verbose).arg(help.action(clap::ArgAction::Help)))
}

/// The words of a call, with those of `gapless run` in the form that the parser takes.
pub(super) fn prepare(arguments: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut words: Vec<OsString> = arguments.collect();
    // Before the verb there are only options without values.
    let is_flag = |word: &OsString| word.to_str().is_some_and(|word| word.starts_with('-'));
    let verb = words.iter().skip(1).position(|word| !is_flag(word)).map(|at| at + 1);
    if let Some(verb) = verb.filter(|&verb| words[verb] == "run") {
        let rest = words.split_off(verb + 1);
        words.extend(words::prepare(&command(), rest));
    }
    words
}

/// What may have been meant otherwise in a call that the parser refuses.
pub(super) fn hint(arguments: impl Iterator<Item = OsString>) -> Option<String> {
    let words: Vec<OsString> = arguments.collect();
    let taken =
        words::taken_as_value(&words).filter(|_| words.get(1).is_some_and(|verb| verb == "run"))?;
    Some(format!("{taken} was read as one variable: NAME=VALUE is one word, or NAME VALUE two"))
}

impl Run {
    pub(super) fn run(mut self) -> Result<ExitCode, Failure> {
        let all = std::mem::take(&mut self.program);
        let mut words = words::programs(&all);
        let mut programs = vec![self.program(words.next().unwrap_or_default())?];
        for words in words {
            programs.push(further(words)?);
        }
        let everywhere = self.everywhere.iter().map(|text| variable("--genv", text));
        let everywhere = everywhere.collect::<Result<Vec<_>, _>>()?;
        for program in &mut programs {
            // A program's own variables come after those of all.
            program.environment.splice(..0, everywhere.iter().cloned());
        }
        let files = [&self.outfile_pattern, &self.errfile_pattern].map(Clone::clone);
        if let Some(named) = &self.named_hosts(&programs)? {
            let wanted = hosts::Wanted {
                programs: &programs,
                files: &files,
                oversubscribe: self.oversubscribe,
                allow_run_as_root: self.allow_run_as_root,
                prefix: self.prefix,
                bind_to: self.bind_to,
                map_by: self.map_by,
                report_bindings: self.report_bindings,
                timeout: self.timeout,
            };
            return hosts::hand_over(named, &wanted);
        }
        let mut launch = Launch { programs, files, ..Launch::default() };
        launch.output = match launch.ranks() {
            _ if self.prefix => Output::Prefixed,
            // Nobody else's lines mix with its own; it may know the terminal.
            1 => Output::Direct,
            _ => Output::Lines,
        };
        launch.time_limit = self.timeout.map(|seconds| Duration::from_secs(seconds.into()));
        launch.processors = self.places(launch.ranks())?;
        end(launch.run())
    }

    /// One program, as these options and these words say.
    fn program(&self, words: &[OsString]) -> Result<Program, Failure> {
        let Some((program, arguments)) = words.split_first() else {
            return Err(bad(":", "", "a program is missing beside it"));
        };
        if let Some(folder) = self.folder.as_ref().filter(|folder| !folder.is_dir()) {
            return Err(bad("--wdir", &folder.display().to_string(), "there is no such folder"));
        }
        let set = self.environment.iter().map(|text| variable("--env", text));
        let exported = self.exported.iter().map(|text| exported(text));
        Ok(Program {
            ranks: self.ranks,
            program: program.clone(),
            arguments: arguments.to_vec(),
            environment: set.chain(exported).collect::<Result<_, _>>()?,
            folder: self.folder.clone(),
        })
    }

    /// The list of hosts that the options come to; none if the job is this host's.
    fn named_hosts(&self, programs: &[Program]) -> Result<Option<hosts::Named>, Failure> {
        let mut named = match (&self.hostfile, &self.hosts) {
            (Some(path), _) => hostfile::read(path)?,
            (None, Some(list)) => hosts::Named::from_option(list),
            (None, None) => {
                let ranks = programs.iter().map(|program| program.ranks);
                let all = ranks.fold(0u32, u32::saturating_add);
                let Some(ppn) = self.ppn.filter(|&ppn| all > ppn) else { return Ok(None) };
                let why = format!(
                    "this host would get {all} processes; --hosts or --hostfile names others"
                );
                return Err(bad("--ppn", &ppn.to_string(), &why));
            }
        };
        if let Some(ppn) = self.ppn {
            named.list = hosts::limited(&named.list, ppn)
                .map_err(|why| bad("--ppn", &ppn.to_string(), &why))?;
        }
        Ok(Some(named))
    }

    /// The processors of each rank; none if nothing is to be bound.
    fn places(&self, ranks: u32) -> Result<Vec<Vec<usize>>, Failure> {
        let by = self.map_by.map(MapBy::from).unwrap_or_default();
        let to = self.bind_to.map(BindTo::from).or(self.map_by.map(BindTo::from));
        let to = to.unwrap_or_default();
        if to == BindTo::None {
            if self.report_bindings {
                complain("no rank is bound");
            }
            return Ok(Vec::new());
        }
        let cores = Cores::allowed()?;
        let binding = cores.place(ranks, to, by);
        if binding.shared && !self.oversubscribe {
            let (there, are) = (cores.count(), if cores.count() == 1 { "core" } else { "cores" });
            complain(&format!("{ranks} ranks share {there} {are}: ranks on one core take turns"));
        }
        if self.report_bindings {
            for (rank, place) in binding.places.iter().enumerate() {
                let listed: Vec<String> = place.processors.iter().map(usize::to_string).collect();
                let (listed, groups) = (listed.join(","), groups_of(place));
                complain(&format!("rank {rank} is bound to processors {listed}{groups}"));
            }
        }
        Ok(binding.places.into_iter().map(|place| place.processors).collect())
    }

    /// The first option that only the first program may have, of those that were given.
    fn of_the_whole_job(&self) -> Option<&'static str> {
        let given = [
            ("--hosts", self.hosts.is_some()),
            ("--hostfile", self.hostfile.is_some()),
            ("--ppn", self.ppn.is_some()),
            ("--genv", !self.everywhere.is_empty()),
            ("--outfile-pattern", self.outfile_pattern.is_some()),
            ("--errfile-pattern", self.errfile_pattern.is_some()),
            ("--oversubscribe", self.oversubscribe),
            ("--prefix", self.prefix),
            ("--bind-to", self.bind_to.is_some()),
            ("--map-by", self.map_by.is_some()),
            ("--report-bindings", self.report_bindings),
            ("--timeout", self.timeout.is_some()),
        ];
        given.into_iter().find(|(_, given)| *given).map(|(option, _)| option)
    }
}

/// A program behind `:`, with options of its own.
fn further(words: &[OsString]) -> Result<Program, Failure> {
    let command = command().no_binary_name(true);
    let words = words::prepare(&command, words.to_vec());
    let parsed = command.try_get_matches_from(words).and_then(|m| Run::from_arg_matches(&m));
    // As for the first program's options: what is wrong, how to call it, exit code 2.
    let mut run = parsed.unwrap_or_else(|error| error.exit());
    if let Some(option) = run.of_the_whole_job() {
        return Err(bad(option, "", "it is for the whole job, and goes before the first program"));
    }
    let words = std::mem::take(&mut run.program);
    run.program(&words)
}

/// Runs a job, and says which process failed first, if one did.
pub(super) fn start(job: &Job) -> Result<ExitCode, Failure> {
    end(launch::run(job))
}

/// The exit code of a job that has ended.
fn end(outcome: Result<Outcome, LaunchError>) -> Result<ExitCode, Failure> {
    let outcome = match outcome {
        Ok(outcome) => outcome,
        // Whoever read the job's output has seen enough (`| head`): the job was ended, quietly.
        Err(LaunchError::System { operation: "write", error })
            if error.kind() == ErrorKind::BrokenPipe =>
        {
            return Ok(ExitCode::from(SIGPIPE_EXIT));
        }
        Err(error) => {
            if let LaunchError::TimedOut { waits, .. } = &error {
                waits.iter().for_each(|line| complain(line));
            }
            return Err(error.into());
        }
    };
    let code = outcome.exit_code();
    match outcome.failed {
        Some((rank, end)) => Err(Failure::Job { rank, end, because: outcome.because, code }),
        None => Ok(ExitCode::from(code)),
    }
}

/// Runs a job of this command. It ends well if whoever reads its output has seen enough.
pub(super) fn start_quietly(job: &Job) -> Result<ExitCode, Failure> {
    match start(job) {
        Err(Failure::Job { end: launch::End::Code(_), code: SIGPIPE_EXIT, .. }) => {
            Ok(ExitCode::SUCCESS)
        }
        other => other,
    }
}

/// The same of ranks that are this command: one that failed has said why.
pub(super) fn start_ours(job: &Job) -> Result<ExitCode, Failure> {
    match start_quietly(job) {
        Err(Failure::Job { end: launch::End::Code(_), code, .. }) => Ok(ExitCode::from(code)),
        other => other,
    }
}

/// Runs this command again, as so many ranks (`--as-rank`).
pub(super) fn start_again(ranks: u32) -> Result<ExitCode, Failure> {
    let job = Job {
        ranks,
        program: std::env::current_exe().map_err(Failure::NoProgram)?.into(),
        arguments: std::env::args_os().skip(1).chain(["--as-rank".into()]).collect(),
        environment: Vec::new(),
        prefix: false,
    };
    let code = start_ours(&job)?;
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    if code != ExitCode::SUCCESS {
        // No figures, nothing to say of them.
    } else if processors < 2 {
        complain("only one processor: the processes take turns on it, times mean little");
    } else if usize::try_from(ranks).is_ok_and(|ranks| ranks > processors) {
        complain(&format!(
            "{ranks} processes on {processors} processors take turns: times mean little"
        ));
    }
    Ok(code)
}

fn ranks(text: &str) -> Result<u32, String> {
    let some = text.parse().ok().filter(|ranks| *ranks > 0);
    some.ok_or_else(|| format!("it is a whole number, 1 to {}", launch::RANKS_MAX))
}

fn variable(option: &'static str, text: &str) -> Result<(OsString, OsString), Failure> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() && !text.contains('\0') => {
            Ok((name.into(), value.into()))
        }
        _ => Err(bad(option, text, "a variable is given as NAME=VALUE")),
    }
}

/// What `-x` sets: a variable without a value is there already, or an error.
fn exported(text: &str) -> Result<(OsString, OsString), Failure> {
    if text.contains('=') {
        return variable("-x", text);
    }
    match std::env::var_os(text).filter(|_| !text.is_empty()) {
        None => Err(bad("-x", text, "this variable is not set; -x NAME=VALUE sets one")),
        Some(value) => Ok((text.into(), value)),
    }
}

fn bad(option: &'static str, value: &str, why: &str) -> Failure {
    Failure::BadOption { option, value: value.to_owned(), why: why.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::{exported, prepare, variable};
    use std::ffi::OsString;

    #[test]
    fn variables_have_a_name() {
        assert_eq!(variable("-e", "A=b=c").unwrap(), ("A".into(), "b=c".into()));
        assert_eq!(variable("-e", "A=").unwrap(), ("A".into(), "".into()));
        for text in ["", "A", "=b"] {
            assert!(variable("-e", text).is_err(), "{text}");
        }
        assert_eq!(exported("A=b").unwrap(), ("A".into(), "b".into()));
        let path = std::env::var_os("PATH").unwrap();
        assert_eq!(exported("PATH").unwrap(), ("PATH".into(), path));
        for text in ["", "=b", "GAPLESS_TEST_NOT_SET"] {
            assert!(exported(text).is_err(), "{text}");
        }
    }

    #[test]
    fn other_verbs_words_are_left_alone() {
        let words = |text: &str| -> Vec<OsString> { text.split(' ').map(OsString::from).collect() };
        for text in ["gapless", "gapless -v", "gapless layout -np run", "gapless -v explain a"] {
            assert_eq!(prepare(words(text).into_iter()), words(text));
        }
        let run = prepare(words("gapless -v run -np 2 run -np").into_iter());
        assert_eq!(run, words("gapless -v run --np 2 -- run -np"));
    }
}
