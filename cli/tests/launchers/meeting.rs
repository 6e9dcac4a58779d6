//! Processes meet, exchange, and leave.

use super::{Launcher, WATCHDOG, pass_under_each};
use crate::common::{finish, rows, text};
use gapless::wireup::{Limits, Pmi1, Questions, WireupError, detect};
use gapless::{Datatype, Primitive, View, ViewMut, World};
use std::collections::BTreeSet;

#[test]
fn columns_go_round() {
    pass_under_each(4, "launchers::meeting::columns_go_round", || {
        let world = World::init().unwrap();
        let comm = world.comm();
        let (me, size) = (comm.rank(), comm.size());
        assert_eq!(size, 4);
        let column = Datatype::vector(64, 1, 64, &Primitive::Double.into()).unwrap();
        let column = column.commit().unwrap();
        let mine: Vec<f64> = (0..64 * 64).map(|at| f64::from(at) + f64::from(me) * 1e6).collect();
        let mut theirs = vec![0.0f64; 64 * 64];
        let (right, left) = ((me + 1) % size, (me + size - 1) % size);
        comm.scope(|s| {
            let _ = s.irecv(ViewMut::typed(&mut theirs, 1, &column, 1)?, left, 0)?;
            let _ = s.isend(View::typed(&mine, 0, &column, 1)?, right, 0)?;
            Ok(())
        })
        .unwrap();
        for (at, &value) in theirs.iter().enumerate() {
            let sent = (at / 64 * 64) as f64 + f64::from(left) * 1e6;
            assert_eq!(value, if at % 64 == 1 { sent } else { 0.0 }, "element {at}");
        }
        world.finalize().unwrap();
    });
}

#[test]
fn every_process_is_somebody_else_of_one_job() {
    pass_under_each(3, "launchers::meeting::every_process_is_somebody_else_of_one_job", || {
        let mut launcher = detect().unwrap();
        let (me, size) = (launcher.rank(), launcher.size());
        assert!(me < size && size == 3);
        assert_eq!(launcher.local_size(), Some(3));
        assert!(!launcher.job().is_empty() && launcher.job().len() <= 120);
        launcher.put("who", &format!("{}-{me}", std::process::id())).unwrap();
        launcher.put("job", launcher.job().to_owned().as_str()).unwrap();
        launcher.fence().unwrap();
        let all: BTreeSet<_> = (0..size).map(|rank| launcher.get(rank, "who").unwrap()).collect();
        assert_eq!(all.len(), 3);
        assert!((0..size).all(|rank| launcher.get(rank, "job").unwrap() == launcher.job()));
        launcher.fence_while(&|| true).unwrap();
        launcher.finalize().unwrap();
        assert!(launcher.fence().is_err(), "it was left");
    });
}

/// Whoever has arrived at a fence still gets what others have published: the other process comes later.
#[test]
fn values_are_got_at_fences() {
    pass_under_each(2, "launchers::meeting::values_are_got_at_fences", || {
        let mut launcher = detect().unwrap();
        assert!(launcher.answers_at_fences());
        let (me, other) = (launcher.rank(), 1 - launcher.rank());
        let long = "x".repeat(3000);
        launcher.put("who", &format!("{long}{me}")).unwrap();
        launcher.fence().unwrap();
        for late in [0, 1] {
            let questions = Questions::default();
            if me == late {
                std::thread::sleep(std::time::Duration::from_millis(150));
            } else {
                assert_eq!(questions.ask(other, "who"), None);
                assert_eq!(questions.ask(other, "nothing"), None);
            }
            launcher.fence_answering(&|| true, &questions).unwrap();
            if me != late {
                assert_eq!(questions.ask(other, "who"), Some(Ok(format!("{long}{other}"))));
                let missing = questions.ask(other, "nothing").unwrap().unwrap_err();
                assert!(matches!(missing, WireupError::NoSuchKey { .. }), "{missing}");
            }
        }
        launcher.finalize().unwrap();
    });
}

#[test]
fn values_are_carried_whatever_their_length() {
    pass_under_each(2, "launchers::meeting::values_are_carried_whatever_their_length", || {
        const LENGTHS: [usize; 9] = [1, 62, 1017, 1018, 1019, 1023, 1024, 1025, 40_000];
        let text = |rank: u32, len: usize| -> String {
            // Every character that a value may hold, from different places.
            let all: Vec<u8> = (b'!'..=b'~').filter(|byte| *byte != b'\\').collect();
            let bytes = (0..len).map(|at| all[(at * 7 + len + rank as usize) % all.len()]);
            String::from_utf8(bytes.collect()).unwrap()
        };
        let mut launcher = detect().unwrap();
        let (me, other) = (launcher.rank(), 1 - launcher.rank());
        for len in LENGTHS {
            launcher.put(&format!("of-{len}"), &text(me, len)).unwrap();
        }
        let odd = "odd/a.b:c;d~!@#$%^&*()[]{}|'\"<>?,";
        launcher.put(odd, "found").unwrap();
        launcher.fence().unwrap();
        for len in LENGTHS {
            assert_eq!(
                launcher.get(other, &format!("of-{len}")).unwrap(),
                text(other, len),
                "{len}"
            );
        }
        assert_eq!(launcher.get(other, odd).unwrap(), "found");
        launcher.fence().unwrap();
        launcher.finalize().unwrap();
    });
}

#[test]
fn what_a_launcher_cannot_carry_is_refused_before_it_is_asked() {
    pass_under_each(
        1,
        "launchers::meeting::what_a_launcher_cannot_carry_is_refused_before_it_is_asked",
        || {
            let mut launcher = detect().unwrap();
            for (key, value) in [
                ("a=b", "x"),
                ("a b", "x"),
                ("", "x"),
                ("a", "x y"),
                ("a", ""),
                ("a", "é"),
                ("a", "\\"),
            ] {
                let error = launcher.put(key, value).unwrap_err();
                assert!(matches!(error, WireupError::BadText { .. }), "{error}");
            }
            for (key, value) in
                [("k".repeat(600), "x".to_owned()), ("a".to_owned(), "x".repeat(100 << 20))]
            {
                let error = launcher.put(&key, &value).unwrap_err();
                assert!(matches!(error, WireupError::TooLong { .. }), "{error}");
            }
            assert!(matches!(launcher.get(0, "a=b"), Err(WireupError::BadText { .. })));
            launcher.fence().unwrap();
            let error = launcher.get(0, "nobody-put-this").unwrap_err();
            assert!(matches!(error, WireupError::NoSuchKey { .. }), "{error}");
            launcher.finalize().unwrap();
        },
    );
}

#[test]
fn the_command_is_launched_by_anybody() {
    for launcher in Launcher::ALL {
        let Some(mut command) = launcher.command(2) else { continue };
        command.arg(env!("CARGO_BIN_EXE_gapless"));
        command.args(["pingpong", "--layout", "nas-lu-x", "--n", "12", "--time", "0.01"]);
        // Less than any cache: a note below the table names the layout once more.
        command.args(["--buffers", "2M"]);
        let output = finish(command, WATCHDOG);
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "{launcher:?}: {err}");
        let rows = rows(&out, "NAS LU x n=12");
        assert!(matches!(rows[..], [row] if row.ends_with("right")), "{launcher:?}: {out}");
    }
}

/// Our launcher is innermost: its processes are a job of its own, whoever started it.
#[test]
fn launchers_in_launchers() {
    for launcher in Launcher::ALL {
        let Some(mut command) = launcher.command(1) else { continue };
        command.arg(env!("CARGO_BIN_EXE_gapless")).args(["run", "-n", "2", "sh", "-c"]);
        command
            .arg("env | grep -c '^PMIX_\\|^PMI_PORT\\|^PMI_ID'; echo rank $PMI_RANK of $PMI_SIZE");
        let output = finish(command, WATCHDOG);
        let mut out: Vec<_> = text(&output.stdout).lines().map(str::to_owned).collect();
        out.sort();
        assert_eq!(
            out,
            ["0", "0", "rank 0 of 2", "rank 1 of 2"],
            "{launcher:?}: {}",
            text(&output.stderr)
        );
    }
    // The other way round: the descriptor of the outer launcher is not open inside.
    for launcher in [Launcher::Hydra, Launcher::OpenMpi] {
        let (Some(inner), Some(_)) = (launcher.command(2), launcher.command(1)) else { continue };
        let mut command = crate::common::gapless();
        command.args(["run", "-n", "1"]).arg(inner.get_program()).args(inner.get_args());
        command.arg(env!("CARGO_BIN_EXE_gapless")).args(["info", "--as-rank"]);
        let variables = inner.get_envs().filter_map(|(name, value)| Some((name, value?)));
        command.envs(variables);
        let output = finish(command, WATCHDOG);
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        assert!(
            output.status.success() && out.contains("shared memory"),
            "{launcher:?}: {out}{err}"
        );
    }
}

/// The numbers that PMI-1's client goes by are the launcher's.
#[test]
fn the_port_tells_the_same_as_the_descriptor() {
    let name = "launchers::meeting::the_port_tells_the_same_as_the_descriptor";
    pass_under_each(2, name, || {
        if std::env::var_os("PMIX_NAMESPACE").is_some() {
            return;
        }
        let mut pmi = Pmi1::from_environment(Limits::default()).unwrap();
        use gapless::wireup::Wireup;
        let known = std::env::var("PMI_RANK").or_else(|_| std::env::var("PMI_ID")).unwrap();
        assert_eq!((pmi.rank().to_string(), pmi.size()), (known, 2));
        pmi.finalize().unwrap();
    });
}
