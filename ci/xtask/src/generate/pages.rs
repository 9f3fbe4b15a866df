//! Man pages: a page for each command from its clap definition, `ghost(7)` from the keys, and
//! `ghostd.toml(5)` from the configuration that is installed as an example.

use super::keys;
use anyhow::Result;
use clap::CommandFactory;
use clap_mangen::Man;
use ghost_model::{ExitCode, Key};
use roff::{Roff, bold, italic, roman};

/// The same pages must come out tomorrow. An empty argument would shift the others.
const NO_DATE: &str = " ";

/// Each page by its file name.
pub(super) fn all() -> Result<Vec<(String, String)>> {
    let mut pages = Vec::new();
    commands(&ghostctl::cli::Cli::command(), "1", &mut pages)?;
    commands(&ghostd::config::Args::command(), "8", &mut pages)?;
    pages.push(("ghost.7".into(), ghost()));
    pages.push(("ghostd.toml.5".into(), configuration()));
    Ok(pages)
}

/// The page of a command and those of its subcommands.
fn commands(
    command: &clap::Command,
    section: &str,
    pages: &mut Vec<(String, String)>,
) -> Result<()> {
    let mut command = command.clone().disable_help_subcommand(true);
    command.build();
    let page = page(&command, section)?;
    let name = command
        .get_display_name()
        .unwrap_or_else(|| command.get_name());
    pages.push((format!("{name}.{section}"), page));
    for sub in command.get_subcommands().filter(|s| !s.is_hide_set()) {
        commands(sub, section, pages)?;
    }
    Ok(())
}

fn page(command: &clap::Command, section: &str) -> Result<String> {
    let man = Man::new(command.clone())
        .section(section)
        .manual("Ghost")
        .date(NO_DATE)
        .source(format!("ghost {}", env!("CARGO_PKG_VERSION")));
    let mut out = Vec::new();
    man.render_title(&mut out)?;
    man.render_name_section(&mut out)?;
    man.render_synopsis_section(&mut out)?;
    man.render_description_section(&mut out)?;
    if command.get_arguments().any(|a| !a.is_hide_set()) {
        man.render_options_section(&mut out)?;
    }
    if command.has_subcommands() {
        man.render_subcommands_section(&mut out)?;
    }
    let mut more = Roff::new();
    if let Some(help) = command.get_after_help() {
        sections(&mut more, &help.to_string());
    }
    see_also(&mut more);
    Ok(String::from_utf8(out)? + &more.render())
}

/// `Examples:` and its like become sections, in which lines stay as they are.
fn sections(roff: &mut Roff, help: &str) {
    let mut title = "NOTES".to_owned();
    let mut lines: Vec<&str> = Vec::new();
    let mut flush = |title: &str, lines: &mut Vec<&str>| {
        let text = lines.join("\n");
        lines.clear();
        let text = text.trim_matches('\n');
        if !text.is_empty() {
            roff.control("SH", [title]).control("nf", []);
            roff.text([roman(text)]).control("fi", []);
        }
    };
    for line in help.lines() {
        match line.strip_suffix(':') {
            Some(next) if !line.starts_with(' ') => {
                flush(&title, &mut lines);
                title = next.to_uppercase();
            }
            _ => lines.push(line.strip_prefix("  ").unwrap_or(line)),
        }
    }
    flush(&title, &mut lines);
}

/// `ghost(7)`: every key, and what values look like.
fn ghost() -> String {
    let mut roff = Roff::new();
    let source = format!("ghost {}", env!("CARGO_PKG_VERSION"));
    roff.control("TH", ["ghost", "7", NO_DATE, &source, "Ghost"]);
    roff.control("SH", ["NAME"]);
    roff.text([roman("ghost - GPU containers: shares and limits that hold")]);
    roff.control("SH", ["DESCRIPTION"]);
    roff.text([roman(
        "A GPU container is a group of processes with a share of GPU time and a limit on GPU \
         memory. Containers form a tree: team/job lies below team and shares what team has. \
         Every key below is the same, with the same values, in the files of \
         /etc/ghost/containers.d, in ghostctl, in REST and in its answers. Names and meanings \
         follow those of cgroup v2.",
    )]);
    roff.control("PP", []);
    roff.text([roman(
        "GPU processes that belong to no container are the container system, which always \
         exists and has a weight of its own.",
    )]);
    roff.control("SH", ["VALUES"]);
    for (what, text) in [
        (
            "sizes",
            "bytes, or a number with K, M, G or T, which are powers of 1024: 24G. max is no limit.",
        ),
        ("times", "whole microseconds."),
        (
            "gpu.max",
            "MAX PERIOD in microseconds (50000 100000), a percentage (50%) or max. PERIOD is \
             10000 to 1000000, MAX is 1000 to PERIOD.",
        ),
        (
            "GPUs",
            "an index, a UUID or the beginning of one, or a PCI address; answers have the UUID.",
        ),
    ] {
        roff.control("TP", []);
        roff.text([italic(what)]).text([roman(text)]);
    }
    roff.control("PP", []);
    roff.text([roman(
        "Limits and protections may be over-committed: writing one never fails because of present \
         use. A limit of memory below what is in use is accepted; new allocations fail until \
         less is used.",
    )]);
    roff.control("SH", ["KEYS"]);
    for key in Key::ALL {
        roff.control("TP", []);
        roff.text([bold(key.as_str())]);
        let mut facts = vec![keys::mode(*key).to_owned()];
        if let Some(default) = ghost_model::Value::default_of(*key) {
            facts.push(format!("default {default}"));
        }
        if key.per_gpu() {
            facts.push("may differ by GPU".into());
        }
        let mut text = vec![roman(format!("({}) ", facts.join(", ")))];
        text.extend(key.doc().split('`').enumerate().map(|(i, part)| {
            if i % 2 == 1 { bold(part) } else { roman(part) }
        }));
        text.push(roman("."));
        roff.text(text);
    }
    roff.control("SH", ["EXIT STATUS"]);
    for (code, text) in [
        (ExitCode::Done, "done"),
        (ExitCode::Failed, "failed"),
        (ExitCode::Usage, "bad arguments or configuration"),
        (
            ExitCode::Unsupported,
            "not supported by this backend or GPU",
        ),
        (ExitCode::Denied, "permission denied"),
        (
            ExitCode::Conflict,
            "exists, changed meanwhile, still populated",
        ),
        (ExitCode::NotFound, "no such container, GPU or key"),
        (ExitCode::NotRunning, "ghostd is not running"),
        (ExitCode::NoDriver, "NVIDIA driver not loaded"),
        (ExitCode::TimedOut, "--wait ran out of time"),
        (ExitCode::RunFailed, "run: ghostctl itself failed"),
        (
            ExitCode::CannotExecute,
            "run: the command cannot be executed",
        ),
        (ExitCode::CommandNotFound, "run: the command was not found"),
        (ExitCode::Interrupted, "interrupted"),
    ] {
        roff.control("TP", []);
        roff.text([bold((code as u8).to_string())])
            .text([roman(text)]);
    }
    roff.control("SH", ["FILES"]);
    for (path, text) in [
        ("/etc/ghost/ghostd.toml", "the daemon"),
        ("/etc/ghost/containers.d/*.toml", "containers"),
        (
            "/var/lib/ghost",
            "what ghostctl changed, counters, the journal",
        ),
        ("/run/ghost/ghostd.sock", "where ghostd listens"),
    ] {
        roff.control("TP", []);
        roff.text([italic(path)]).text([roman(text)]);
    }
    see_also(&mut roff);
    roff.render()
}

fn see_also(roff: &mut Roff) {
    roff.control("SH", ["SEE ALSO"]);
    roff.text([
        bold("ghostctl"),
        roman("(1), "),
        bold("ghostd.toml"),
        roman("(5), "),
        bold("ghost"),
        roman("(7), "),
        bold("ghostd"),
        roman("(8)"),
    ]);
}

/// `ghostd.toml(5)`: the example, whose comments say what each key is for.
fn configuration() -> String {
    let mut roff = Roff::new();
    let source = format!("ghost {}", env!("CARGO_PKG_VERSION"));
    roff.control("TH", ["ghostd.toml", "5", NO_DATE, &source, "Ghost"]);
    roff.control("SH", ["NAME"]);
    roff.text([roman("ghostd.toml - configuration of ghostd")]);
    roff.control("SH", ["SYNOPSIS"]);
    roff.text([italic(ghostd::config::DEFAULT_FILE)]);
    roff.control("SH", ["KEYS"]);
    roff.control("nf", []);
    roff.text([roman(
        include_str!("../../../../ghostd/systemd/ghostd.toml").trim_end(),
    )]);
    roff.control("fi", []);
    see_also(&mut roff);
    roff.render()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_verb_and_every_key_has_its_page() {
        let pages = all().unwrap();
        let page = |name: &str| {
            let found = pages.iter().find(|(n, _)| n == name);
            found.map(|(_, text)| text.as_str()).unwrap_or_default()
        };
        assert!(page("ghostctl-limit.1").contains("dry\\-run"));
        assert!(page("ghostctl-gpu-list.1").contains(".SH OPTIONS"));
        assert!(page("ghostctl.1").contains(".SH EXAMPLES"));
        assert!(page("ghostctl.1").contains(".SH \"EXIT CODES\""));
        assert_eq!(page("ghostctl-enter.1"), "");
        assert!(page("ghostd.8").contains("state\\-dir"));
        assert!(page("ghostd.toml.5").contains("socket_group"));
        let escaped = |k: &Key| k.as_str().replace('.', "\\&.");
        for key in Key::ALL {
            let found =
                page("ghost.7").contains(key.as_str()) || page("ghost.7").contains(&escaped(key));
            assert!(found, "{key}");
        }
    }
}
