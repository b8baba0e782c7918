"""Try docs/hub for real: two learners, a browser, a restart, limits, idle culling.

    python tests/hub_trial.py BASE [--keep]

As root, on a machine that may be changed: it makes two users, and removes them at the end. BASE is
an empty folder for homes and state. COURSE_HUB_PYTHON is the course's Python with jupyterhub in it,
COURSE_HUB_COURSE an unpacked student bundle, JUPYTERHUB the hub's own program, COURSE_HUB_PROXY the
proxy's. Everything listens on loopback only. It prints what it measured as JSON.
"""

import json
import os
import pwd
import re
import secrets
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from playwright.sync_api import sync_playwright

ROOT = Path(__file__).resolve().parents[1]
GROUP = "hubtrial"
USERS = ["hubtrial-lea", "hubtrial-max"]
ANSWER = '''def blocks_needed(num_tokens: int, block_size: int) -> int:
    """{who} wrote this."""
    if num_tokens < 0 or block_size < 1:
        raise ValueError(f"{{num_tokens}} tokens, block size {{block_size}}")
    return -(-num_tokens // block_size)
'''
NOTEBOOK = "exercises/04_block_tables.ipynb"
IDLE = 40  # s, in the part of the trial that is about idle servers


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


class Hub:
    def __init__(self, base, idle=3600):
        self.port = free_port()
        self.address = f"http://127.0.0.1:{self.port}"
        self.log = open(base / "hub.log", "ab")  # noqa: SIM115
        env = {
            **os.environ,
            "COURSE_HUB_STATE": str(base / "state"), "COURSE_HUB_ADDRESS": self.address,
            "COURSE_HUB_PORT": str(free_port()), "COURSE_HUB_API": str(free_port()),
            "COURSE_HUB_GROUP": GROUP, "COURSE_HUB_IDLE_SECONDS": str(idle),
        }  # fmt: skip
        command = [os.environ.get("JUPYTERHUB", "jupyterhub"), "-f",
                   str(ROOT / "docs" / "hub" / "jupyterhub_config.py")]  # fmt: skip
        self.process = subprocess.Popen(
            command, cwd=base / "state", env=env, stdout=self.log, stderr=self.log
        )
        until(lambda: self.answers(), 60, "the hub does not answer")

    def answers(self):
        try:
            with urllib.request.urlopen(f"{self.address}/hub/health", timeout=2) as told:
                return told.status == 200
        except OSError:
            return False

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)
        self.log.close()


def until(true, seconds, why):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := true():
            return found
        time.sleep(0.3)
    raise AssertionError(f"{why}, in {seconds} s")


def processes(user):
    """Numbers of a user's processes."""
    uid = pwd.getpwnam(user).pw_uid
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if path.stat().st_uid == uid:
                found.append(int(path.name))
        except OSError:
            continue
    return found


def used(user):
    """MiB by process: own and shared (a fair part of what several use), and CPU seconds."""
    proportional, seconds = 0, 0.0
    for number in processes(user):
        try:
            rollup = Path(f"/proc/{number}/smaps_rollup").read_text()
            stat = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        proportional += int(re.search(r"Pss:\s+(\d+)", rollup)[1])
        seconds += (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")
    return round(proportional / 1024), round(seconds, 1)


def log_in(browser, hub, user, password):
    page = browser.new_context().new_page()
    page.set_default_timeout(90_000)
    page.goto(f"{hub.address}/hub/login?next=/hub/user-redirect/lab/tree/{NOTEBOOK}")
    page.fill("#username_input", user)
    page.fill("#password_input", password)
    page.click("#login_submit")
    page.wait_for_url(f"**/user/{user}/lab/**")
    page.wait_for_selector(".jp-Notebook .jp-Cell")
    return page


def scroll_to(page, words):
    """The cell with these words, wherever it is in the notebook."""
    cell = page.locator(".jp-Notebook .jp-CodeCell", has_text=words).first
    page.locator(".jp-Notebook").first.hover()
    page.mouse.wheel(0, -100_000)
    for _ in range(60):
        if cell.count() and cell.is_visible():
            cell.scroll_into_view_if_needed()
            return cell
        page.mouse.wheel(0, 500)
        time.sleep(0.2)
    raise AssertionError(f"no cell has {words!r}")


def work(page, user):
    """Edit an answer, run everything, see the check pass, save."""
    cell = scroll_to(page, "4.2: write blocks_needed")
    cell.locator(".cm-content").click()
    page.keyboard.press("Control+A")
    page.keyboard.insert_text(ANSWER.format(who=user))
    page.keyboard.press("Escape")
    page.click("text=Run >> nth=0")
    page.click(".lm-Menu-itemLabel:text-is('Run All Cells')")
    page.wait_for_timeout(3000)
    until(lambda: not page.locator(".jp-Notebook-ExecutionIndicator[data-status='busy']").count(),
          120, "the kernel does not come to rest")  # fmt: skip
    words = scroll_to(page, "check(blocks_needed)")
    page.wait_for_function(
        "() => document.body.innerText.includes('4.2 blocks_needed: all')", timeout=60_000
    )
    page.keyboard.press("Control+S")
    return words


def main():
    base = Path(sys.argv[1]).resolve()
    (base / "state").mkdir(parents=True)
    base.chmod(0o755)
    subprocess.run(["groupadd", GROUP], check=True)
    passwords = {user: secrets.token_hex(8) for user in USERS}
    told = {"users": len(USERS)}
    hub = None
    try:
        for user in USERS:
            subprocess.run(["useradd", "-m", "-b", str(base), "-G", GROUP, user], check=True)
            subprocess.run(["chpasswd"], input=f"{user}:{passwords[user]}", text=True, check=True)
        hub = Hub(base)
        with sync_playwright() as playwright:
            options = {"executable_path": os.environ.get("CHROMIUM", "/usr/bin/chromium"),
                       "args": ["--no-sandbox"]}  # fmt: skip
            browser = playwright.chromium.launch(**options)
            try:
                pages = {}
                for user in USERS:
                    began = time.monotonic()
                    pages[user] = log_in(browser, hub, user, passwords[user])
                    told.setdefault("seconds_to_notebook", []).append(
                        round(time.monotonic() - began, 1)
                    )
                told["mib_lab_open"] = [used(user)[0] for user in USERS]
                for user, page in pages.items():
                    work(page, user)
                told["mib_after_checks"] = [used(user)[0] for user in USERS]
                told["cpu_seconds"] = [used(user)[1] for user in USERS]
                for user in USERS:
                    mine = base / user / "paged-attention"
                    until(lambda m=mine, u=user: f"{u} wrote this" in (m / NOTEBOOK).read_text(),
                          30, "not saved")  # fmt: skip
                    assert (mine / "my_engine" / "04-blocks_needed.py").exists()
                    limits = Path(f"/proc/{processes(user)[0]}/limits").read_text()
                    told["data_limit"] = int(re.search(r"Max data size\s+(\d+)", limits)[1])
                other = base / USERS[1] / "paged-attention"
                seen = subprocess.run(["su", USERS[0], "-c", f"cat {other}/{NOTEBOOK}"],
                                      capture_output=True)  # fmt: skip
                assert seen.returncode != 0, "another learner can read it"
                browser.close()
                # The whole machine goes down and comes back.
                hub.stop()
                for user in USERS:
                    subprocess.run(["pkill", "-u", user], check=False)
                hub = Hub(base, idle=IDLE)
                browser = playwright.chromium.launch(**options)
                for user in USERS:
                    page = log_in(browser, hub, user, passwords[user])
                    cell = scroll_to(page, f"{user} wrote this")
                    assert "def blocks_needed" in cell.inner_text()
                told["found_again"] = True
                browser.close()
                began = time.monotonic()
                until(lambda: not any(processes(user) for user in USERS), 240, "not culled")
                told["culled_after"] = round(time.monotonic() - began)
            except Exception:
                for n, context in enumerate(browser.contexts if browser.is_connected() else []):
                    for page in context.pages:
                        page.screenshot(path=str(base / f"page-{n}.png"))
                raise
            finally:
                if browser.is_connected():
                    browser.close()
    finally:
        if hub is not None:
            hub.stop()
        for user in USERS:
            subprocess.run(["pkill", "-KILL", "-u", user], check=False)
            subprocess.run(["userdel", "--force", user], check=False)
        subprocess.run(["groupdel", GROUP], check=False)
    print(json.dumps(told, indent=1))


if __name__ == "__main__":
    main()
