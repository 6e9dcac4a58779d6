//! Two hosts on one machine: network namespaces that are joined by a pair of virtual interfaces. Making them needs root
//! and `ip` (iproute2).

use std::ffi::OsString;
use std::process::Command;

/// Two namespaces and the cable between them; they go when this is dropped.
pub(crate) struct Namespaces(pub(crate) [String; 2]);

fn ip(words: &str) -> Result<(), String> {
    tool("ip", words)
}

/// Runs a tool of the system.
///
/// # Errors
/// It is not there, or failed.
pub(crate) fn tool(name: &str, words: &str) -> Result<(), String> {
    match Command::new(name).args(words.split(' ')).output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => {
            Err(format!("{name} {words}: {}", String::from_utf8_lossy(&output.stderr).trim()))
        }
        Err(error) => Err(format!("{name}: {error}")),
    }
}

impl Namespaces {
    /// What starts a process of a job in the namespace of its rank.
    pub(crate) const PROGRAM: &str = "sh";

    /// Its arguments, before those that say what it starts.
    pub(crate) fn arguments(&self) -> Vec<OsString> {
        let [a, b] = &self.0;
        let script = format!(
            "if [ $PMI_RANK = 0 ]; then exec ip netns exec {a} \"$@\"; else exec ip netns exec {b} \"$@\"; fi"
        );
        ["-c", &script, "sh"].map(Into::into).to_vec()
    }

    /// # Errors
    /// What is missing, in one line.
    pub(crate) fn new() -> Result<Namespaces, String> {
        let id = std::process::id() % 1_000_000;
        let hosts = Namespaces(["a", "b"].map(|end| format!("glf{id}{end}")));
        let [a, b] = &hosts.0;
        for name in [a, b] {
            ip(&format!("netns add {name}"))?;
            ip(&format!("-n {name} link set lo up"))?;
        }
        ip(&format!("link add {a} type veth peer name {b}"))?;
        for (name, last) in [(a, 1), (b, 2)] {
            ip(&format!("link set {name} netns {name}"))?;
            ip(&format!("-n {name} addr add 10.78.0.{last}/24 dev {name}"))?;
            ip(&format!("-n {name} link set {name} up"))?;
        }
        Ok(hosts)
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        for name in &self.0 {
            let _ = ip(&format!("netns del {name}"));
        }
    }
}
