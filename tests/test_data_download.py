"""Getting a data set: from a server of our own that fails in every way, and from local archives."""

import hashlib
import io
import re
import subprocess
import sys
import tarfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from tiny_data import write_cub, write_dogs

from dpp import doctor
from dpp.data import catalogue, download, install
from dpp.data.archives import unpack
from dpp.data.catalogue import Archive, Published
from dpp.data.disk_space import NoSpaceError
from dpp.system.errors import UserError


class Server:
    """Serves bytes by path; the next answers can be made to go wrong."""

    def __init__(self):
        self.files: dict[str, bytes] = {}
        self.requests: list[str | None] = []  # the Range header of each
        self.cut_after: list[int] = []  # how many bytes the next answers send before they stop
        self.ranges = True
        self.status: list[int] = []  # of the next answers, instead of a file

        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                outer.answer(self)

            def log_message(self, *arguments):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True).start()
        self.address = f"http://127.0.0.1:{self.http.server_port}"

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        asked = handler.headers.get("Range")
        self.requests.append(asked)
        if self.status:
            return handler.send_error(self.status.pop(0))
        content = self.files.get(handler.path)
        if content is None:
            return handler.send_error(404)
        begins = int(re.fullmatch(r"bytes=(\d+)-", asked)[1]) if asked and self.ranges else 0
        if begins >= len(content):
            handler.send_response(416)
            handler.send_header("Content-Range", f"bytes */{len(content)}")
            handler.send_header("Content-Length", "0")
            return handler.end_headers()
        handler.send_response(206 if begins else 200)
        if begins:
            span = f"bytes {begins}-{len(content) - 1}/{len(content)}"
            handler.send_header("Content-Range", span)
        handler.send_header("Content-Length", str(len(content) - begins))
        handler.end_headers()
        rest = content[begins:]
        handler.wfile.write(rest[: self.cut_after.pop(0)] if self.cut_after else rest)


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(download, "PAUSE", 0)
    server = Server()
    yield server
    server.http.shutdown()
    server.http.server_close()


def packed(folder: Path, prefix: str = "", mode: str = "w:gz") -> bytes:
    """A tar file of a folder's content."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode=mode) as tar:
        for path in sorted(folder.iterdir()):
            tar.add(path, f"{prefix}{path.name}")
    return file.getvalue()


def published(server: Server, key: str, contents: dict[str, bytes], **changes) -> Published:
    """A data set's description with our server's archives in place of the real ones."""
    archives = []
    for name, content in contents.items():
        server.files[f"/{name}"] = content
        md5 = hashlib.md5(content).hexdigest()
        archives.append(Archive(name, f"{server.address}/{name}", md5, len(content)))
    real = catalogue.PUBLISHED[key]
    values = {**real.__dict__, "archives": tuple(archives), "counts": (10, 6, 4)}
    values.update(unpacked_bytes=10_000, **changes)
    return Published(**values)


@pytest.fixture
def cub(server, tmp_path):
    content = packed(write_cub(tmp_path / "original"), "CUB_200_2011/")
    return published(server, "cub", {"CUB_200_2011.tgz": content})


@pytest.fixture
def root(tmp_path):
    return tmp_path / "root"


def left(root: Path) -> list[str]:
    return sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())


def test_cub_is_downloaded_unpacked_and_verified(cub, root, server):
    source = install.install(cub, root)
    assert source.counts() == (10, 6, 4) and source.root == root / "CUB_200_2011"
    assert [path.name for path in root.iterdir()] == ["CUB_200_2011"]  # nothing else is left
    assert server.requests == [None]
    install.install(cub, root)
    assert server.requests == [None]  # what is there is verified, not downloaded again


def test_dogs_are_put_together_from_three_archives(server, tmp_path, root):
    original = write_dogs(tmp_path / "original")
    lists = tmp_path / "lists"
    lists.mkdir()
    for path in original.glob("*.mat"):
        path.rename(lists / path.name)
    contents = {"lists.tar": packed(lists, mode="w")}
    for name, folder in (("images.tar", "Images"), ("annotation.tar", "Annotation")):
        contents[name] = packed(original / folder, f"{folder}/", mode="w")
    given = tmp_path / "annotation.tar"
    given.write_bytes(contents["annotation.tar"])
    dogs = published(server, "dogs", contents)
    assert install.install(dogs, root, [given]).counts() == (10, 6, 4)
    assert len(server.requests) == 2 and given.exists()
    assert [path.name for path in root.iterdir()] == ["StanfordDogs"]
    assert (root / "StanfordDogs").stat().st_mode & 0o077  # others may read it


def test_interrupted_download_resumes_by_itself(cub, root, server):
    server.cut_after = [700, 300]
    assert install.install(cub, root).counts() == (10, 6, 4)
    assert server.requests == [None, "bytes=700-", "bytes=1000-"]


def test_interrupted_download_resumes_in_the_next_run(cub, root, server, monkeypatch):
    monkeypatch.setattr(download, "ATTEMPTS", 1)
    server.cut_after = [700]
    with pytest.raises(UserError, match=r"ended after 700 of .*; 700 bytes are kept: run the same"):
        install.install(cub, root)
    assert left(root) == ["downloads/CUB_200_2011.tgz.part"]
    assert install.install(cub, root).counts() == (10, 6, 4)
    assert server.requests == [None, "bytes=700-"]


def test_server_without_ranges_starts_again(cub, root, server):
    server.ranges, server.cut_after = False, [700]
    assert install.install(cub, root).counts() == (10, 6, 4)
    assert server.requests == [None, "bytes=700-"]


def test_part_that_is_complete_is_taken(cub, root, server):
    part = root / "downloads" / "CUB_200_2011.tgz.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(server.files["/CUB_200_2011.tgz"])
    assert install.install(cub, root).counts() == (10, 6, 4)


def test_download_that_was_damaged_on_the_disk_is_made_again(cub, root, server):
    done = root / "downloads" / "CUB_200_2011.tgz"
    done.parent.mkdir(parents=True)
    done.write_bytes(b"damaged")
    assert install.install(cub, root).counts() == (10, 6, 4)
    assert server.requests == [None]


def test_download_that_was_finished_before_is_taken(cub, root, server):
    done = root / "downloads" / "CUB_200_2011.tgz"
    done.parent.mkdir(parents=True)
    done.write_bytes(server.files["/CUB_200_2011.tgz"])
    assert install.install(cub, root).counts() == (10, 6, 4)
    assert server.requests == []


def test_part_that_is_too_long_is_thrown_away(cub, root, server):
    part = root / "downloads" / "CUB_200_2011.tgz.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(server.files["/CUB_200_2011.tgz"] + b"more")
    assert install.install(cub, root).counts() == (10, 6, 4)
    assert server.requests[-1] is None


def test_busy_server_is_asked_again_and_a_refusal_is_not(cub, root, server):
    server.status = [503, 502]
    assert install.install(cub, root).counts() == (10, 6, 4)
    assert len(server.requests) == 3
    server.files.clear()
    server.requests.clear()
    with pytest.raises(UserError, match=r"HTTP Error 404.* pass it with --archive"):
        install.install(cub, root / "other")
    assert len(server.requests) == 1 and left(root / "other") == []


def test_server_that_is_not_there_is_told_at_once(cub, root, server):
    server.http.shutdown()
    server.http.server_close()
    with pytest.raises(UserError, match=r"could not be downloaded: .*refused.* --archive"):
        install.install(cub, root)
    assert list(root.iterdir()) == []


def test_wrong_checksum_leaves_nothing_behind_and_says_so(cub, root, server):
    content = server.files["/CUB_200_2011.tgz"]
    server.files["/CUB_200_2011.tgz"] = content[:-1] + bytes([content[-1] ^ 1])
    with pytest.raises(
        UserError, match=f"md5 checksum .*, not {cub.archives[0].md5}: .*it was deleted"
    ):
        install.install(cub, root)
    assert left(root) == []


def test_wrong_checksum_of_a_given_archive_is_refused_and_the_file_kept(cub, root, tmp_path):
    given = tmp_path / "mine.tgz"
    given.write_bytes(b"something else")
    with pytest.raises(UserError, match="mine.tgz has the md5 checksum"):
        install.install(cub, root, [given])
    assert given.exists() and not root.exists()


def test_no_space_says_so_before_anything_is_asked_for(cub, root, server, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 1000}))
    with pytest.raises(UserError, match=r"CUB-200-2011 needs .* GB free: free some space, set DPP"):
        install.install(cub, root)
    assert server.requests == [] and not root.exists()


def install_bytes(server, root, content, **changes):
    """Installs an archive with these bytes, whose checksum is right."""
    return install.install(published(server, "cub", {"CUB.tgz": content}, **changes), root)


@pytest.mark.parametrize("mode", ["w:gz", "w"])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.7])
def test_truncated_archive_leaves_nothing_behind(server, tmp_path, root, mode, share):
    content = packed(write_cub(tmp_path / "original"), "CUB_200_2011/", mode)
    content = content[: int(len(content) * share)]
    with pytest.raises(
        UserError, match=r"CUB.tgz is damaged or ends early|no .*txt|cannot be read"
    ):
        install_bytes(server, root, content)
    assert list(root.iterdir()) == []


def test_archive_that_ends_between_members_is_seen_by_counting(server, tmp_path, root):
    original = write_cub(tmp_path / "original", train=4)
    content = packed(original, "CUB_200_2011/")
    with pytest.raises(UserError, match=r"has 12 images, 8 / 4, not 10 images, 6 / 4: it is inco"):
        install_bytes(server, root, content)
    assert list(root.iterdir()) == []


def evil(member: tarfile.TarInfo) -> bytes:
    """An archive with one good file and then one more member."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as tar:
        good = tarfile.TarInfo("CUB_200_2011/good.txt")
        good.size = 4
        tar.addfile(good, io.BytesIO(b"good"))
        tar.addfile(member, io.BytesIO(b"evil") if member.size else None)
    return file.getvalue()


def member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    info.size = 4 if kind == tarfile.REGTYPE else 0
    return info


@pytest.mark.parametrize(
    ("info", "said"),
    [
        (member("../outside.txt"), "'../outside.txt' leads out of its folder"),
        (member("CUB_200_2011/../../outside.txt"), "leads out of its folder"),
        (member("/dpp_outside.txt"), "'/dpp_outside.txt' leads out of its folder"),
        (member("..\\outside.txt"), "leads out of its folder"),
        (member("C:outside.txt"), "leads out of its folder"),
        (member("CUB_200_2011/link", tarfile.SYMTYPE, "/etc"), "link' is a link"),
        (member("CUB_200_2011/link", tarfile.SYMTYPE, "good.txt"), "link' is a link"),
        (member("CUB_200_2011/hard", tarfile.LNKTYPE, "CUB_200_2011/good.txt"), "is a link"),
        (member("CUB_200_2011/pipe", tarfile.FIFOTYPE), "pipe' is neither file nor folder"),
        (member("CUB_200_2011/disk", tarfile.BLKTYPE), "disk' is neither file nor folder"),
    ],
    ids=lambda value: value.name if isinstance(value, tarfile.TarInfo) else "",
)
def test_archive_that_reaches_outside_is_refused_and_leaves_nothing(server, root, info, said):
    pattern = f"CUB.tgz is refused: .*{re.escape(said)}"
    with pytest.raises(UserError, match=pattern):
        install_bytes(server, root, evil(info))
    assert list(root.parent.rglob("*")) == [root]
    assert not Path("/dpp_outside.txt").exists()


def test_archive_is_looked_at_before_anything_is_unpacked(tmp_path):
    archive = tmp_path / "evil.tgz"
    archive.write_bytes(evil(member("../outside.txt")))
    target = tmp_path / "target"
    target.mkdir()
    with pytest.raises(UserError, match="leads out"):
        unpack(archive, target)
    assert list(target.iterdir()) == []


def test_archive_that_is_empty_or_absent_is_refused(tmp_path):
    with pytest.raises(UserError, match="there is no archive .*gone.tar"):
        unpack(tmp_path / "gone.tar", tmp_path)
    archive = tmp_path / "empty.tar"
    tarfile.open(archive, "w").close()
    with pytest.raises(UserError, match="empty.tar is empty"):
        unpack(archive, tmp_path)


def test_archive_that_would_not_fit_is_refused_before_it_is_unpacked(tmp_path, monkeypatch):
    archive = tmp_path / "large.tar"
    archive.write_bytes(packed(write_cub(tmp_path / "original")))
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 1000}))
    target = tmp_path / "target"
    target.mkdir()
    with pytest.raises(UserError, match="unpacking large.tar needs"):
        unpack(archive, target)
    assert list(target.iterdir()) == []


def test_what_is_there_and_not_complete_is_refused_and_left_alone(cub, root, server):
    write_cub(root / "CUB_200_2011", train=2)
    files = left(root)
    with pytest.raises(UserError, match=r"has 8 images, 4 / 4, not 10 .* move it away"):
        install.install(cub, root)
    assert left(root) == files and server.requests == []


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["gone.tar"], "there is no archive"),
        (["other.tar"], r"other.tar is not an archive of Stanford Dogs, which has images.tar"),
        (["a/lists.tar", "b/lists.tar"], "are the same archive"),
    ],
)
def test_given_archives_that_do_not_fit_are_refused(tmp_path, names, said):
    given = [tmp_path / name for name in names]
    for path in given:
        path.parent.mkdir(exist_ok=True)
        if "gone" not in path.name:
            path.touch()
    with pytest.raises(UserError, match=said):
        install.assign(catalogue.PUBLISHED["dogs"], given)


def test_prepare_says_what_is_there_and_what_is_next(cub, root, tmp_path, monkeypatch):
    monkeypatch.setitem(catalogue.PUBLISHED, "cub", cub)
    monkeypatch.setenv("DPP_DATA", str(root))
    said = install.prepare("cub").splitlines()
    assert said[0].startswith(f"CUB-200-2011 is at {root / 'CUB_200_2011'}: 2 classes, 10 images")
    assert said[1:] == ["next: dpp reproduce --profile photo, or --profile paper with a GPU"]
    assert doctor.examine(["CUB-200-2011"])[0].found == str(root / "CUB_200_2011")
    elsewhere = install.prepare("cub", root=tmp_path / "elsewhere")
    assert f"export DPP_DATA={tmp_path / 'elsewhere'}" in elsewhere


def test_prepare_refuses_an_archive_for_what_is_drawn(tmp_path):
    with pytest.raises(UserError, match="posebirds is drawn, not unpacked"):
        install.prepare("posebirds", [tmp_path / "birds.tgz"], tmp_path)


def test_prepare_draws_posebirds_in_the_given_root(tmp_path, monkeypatch):
    monkeypatch.setattr(
        catalogue, "load", lambda name, root: drawn.append((name, root)) or tiny(root)
    )
    drawn, tiny = [], lambda root: catalogue.read_cub(write_cub(root / "drawn"), name="PoseBirds")
    said = install.prepare("posebirds", root=tmp_path)
    assert drawn == [("posebirds", tmp_path)]
    assert said.startswith("PoseBirds is at ") and said.endswith("next: dpp reproduce")


def test_command_line_refuses_in_one_line(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "dpp", "data", "cub", "--archive", "gone.tgz", "--root", tmp_path],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert done.stderr == "dpp: there is no archive gone.tgz\n"


def test_real_descriptions_hold_the_published_numbers():
    cub, dogs = catalogue.PUBLISHED["cub"], catalogue.PUBLISHED["dogs"]
    assert cub.counts == (11_788, 5_994, 5_794) and dogs.counts == (20_580, 12_000, 8_580)
    assert all(data_set.counts[0] == sum(data_set.counts[1:]) for data_set in (cub, dogs))
    assert cub.archives[0].md5 == "97eceeb196236b17998738112f37df78"


def test_download_is_kept_when_unpacking_does_not_fit(cub, root, monkeypatch):
    def refuse(archive, folder):
        raise NoSpaceError("no room for it")

    monkeypatch.setattr(install, "unpack", refuse)
    with pytest.raises(UserError, match="no room"):
        install.install(cub, root)
    assert [path.split("/")[0] for path in left(root)] == ["downloads"]


def test_folder_that_is_in_the_way_is_named(cub, root):
    (root / cub.folder).mkdir(parents=True)
    with pytest.raises(UserError, match="move it away"):
        install.install(cub, root)


def test_file_that_is_no_archive_is_refused_in_one_line(tmp_path):
    (tmp_path / "archive.tar").write_bytes(b"no archive")
    with pytest.raises(UserError, match="archive.tar is damaged or ends early") as caught:
        unpack(tmp_path / "archive.tar", tmp_path / "folder")
    assert len(str(caught.value).splitlines()) == 1
