#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Azure's Blob Storage, as far as tests need it: azure_blobs.py PORT FOLDER

No package registry has a server of Azure's, so this one is ours: one account,
whose containers are FOLDER's folders and whose blobs are files in them.
Requests must be signed by the account's key ("Authorize with Shared Key",
version 2015-02-21 and later). Blocks that aren't committed stay in memory.
"""

import base64
import email.utils
import hashlib
import hmac
import http.server
import os
import pathlib
import re
import sys
import threading
import urllib.parse
import xml.etree.ElementTree as xml
from xml.sax.saxutils import escape

ACCOUNT = "account"
KEY = b"a key that signs what tests ask of the server"
FOLDER = pathlib.Path(sys.argv[2])
BLOCKS = {}  # path of the blob: {id: bytes}
# Empty blobs in folders' places: "CONTAINER/PATH/": their metadata.
MARKERS = {}
LOCK = threading.RLock()
PAGE = 4
# Headers of the string to sign, in its order.
SIGNED = ["content-encoding", "content-language", "content-length",
          "content-md5", "content-type", "date", "if-modified-since",
          "if-match", "if-none-match", "if-unmodified-since", "range"]


def etag(file):
    status = file.stat()
    return f'"{status.st_mtime_ns:x}-{status.st_ino:x}-{status.st_size:x}"'


def remove(file):
    """With the folders that it leaves empty, which a store doesn't have."""
    if not file.is_file():
        return
    file.unlink()
    for folder in file.parents:
        if folder.parent == FOLDER or any(folder.iterdir()):
            break
        folder.rmdir()


def http_date(seconds):
    return email.utils.formatdate(seconds, usegmt=True)


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = 1 << 20  # an answer in one piece

    def log_message(self, *_):
        pass

    # Azure's client takes an answer that comes with this one to begin in it.
    def handle_expect_100(self):
        if not int(self.headers.get("content-length") or 0):
            return True
        goes_on = super().handle_expect_100()
        self.wfile.flush()
        return goes_on

    def answer(self, code, body=b"", error="", **headers):
        if error:
            headers["x-ms-error-code"] = error
            if self.command != "HEAD":
                body = (f'<?xml version="1.0" encoding="utf-8"?><Error><Code>'
                        f"{error}</Code><Message>{error}</Message></Error>"
                        ).encode()
                headers["Content-Type"] = "application/xml"
        self.send_response(code)
        if self.close_connection:
            headers["Connection"] = "close"
        headers.setdefault("Content-Length", str(len(body)))
        headers.setdefault("x-ms-request-id", "1")
        headers.setdefault("x-ms-version", "2021-12-02")
        for name, value in headers.items():
            self.send_header(
                name if "-" in name else name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def is_signed(self, url):
        def header(name):
            value = self.headers.get(name, "")
            return "" if name == "content-length" and value == "0" else value

        own = sorted((name.lower(), value.strip())
                     for name, value in self.headers.items()
                     if name.lower().startswith("x-ms-"))
        text = "\n".join([self.command, *map(header, SIGNED),
                          *(f"{name}:{value}" for name, value in own),
                          f"/{ACCOUNT}{url.path}"])
        query = urllib.parse.parse_qs(url.query, keep_blank_values=True)
        for name in sorted(query):
            text += f"\n{name.lower()}:{','.join(sorted(query[name]))}"
        digest = hmac.new(KEY, text.encode(), hashlib.sha256)
        signature = base64.b64encode(digest.digest()).decode()
        return self.headers.get("authorization") == (
            f"SharedKey {ACCOUNT}:{signature}")

    def serve(self):
        length = int(self.headers.get("content-length") or 0)
        body = self.rfile.read(length)
        url = urllib.parse.urlsplit(self.path)
        if not self.is_signed(url):
            return self.answer(403, error="AuthenticationFailed")
        query = dict(urllib.parse.parse_qsl(url.query, keep_blank_values=True))
        parts = urllib.parse.unquote(url.path).strip("/").split("/", 2)
        if parts[0] != ACCOUNT or len(parts) < 2:
            return self.answer(400, error="InvalidUri")
        container = FOLDER / parts[1]
        if not container.is_dir():
            return self.answer(404, error="ContainerNotFound")
        if query.get("action") == "getAccessControl":
            return self.answer(409, error="HierarchicalNamespaceNotEnabled")
        if len(parts) == 2:
            return self.serve_container(container, query, body)
        with LOCK:
            if url.path.endswith("/"):
                return self.serve_marker("/".join(parts[1:]) + "/")
            return self.serve_blob(container / parts[2], query, body)

    do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = serve

    def serve_container(self, container, query, body):
        with LOCK:
            if query.get("comp") == "list":
                return self.list_blobs(container, query)
            if query.get("comp") == "batch":
                return self.batch(body)
        if self.command in ("GET", "HEAD"):
            return self.answer(200, ETag='"0"', Last_Modified=http_date(0),
                               x_ms_lease_state="available",
                               x_ms_lease_status="unlocked",
                               x_ms_has_immutability_policy="false",
                               x_ms_has_legal_hold="false")
        return self.answer(409, error="ContainerAlreadyExists")

    # An empty blob in a folder's place.
    def serve_marker(self, name):
        if self.command == "PUT":
            MARKERS[name] = {
                key[len("x-ms-meta-"):]: value
                for key, value in self.headers.items()
                if key.lower().startswith("x-ms-meta-")}
            return self.answer(201, ETag='"0"', Last_Modified=http_date(0),
                               x_ms_request_server_encrypted="true")
        if name not in MARKERS:
            return self.answer(404, error="BlobNotFound")
        if self.command == "DELETE":
            del MARKERS[name]
            return self.answer(202)
        return self.answer(200, ETag='"0"', Last_Modified=http_date(0),
                           x_ms_blob_type="BlockBlob",
                           x_ms_creation_time=http_date(0),
                           x_ms_lease_state="available",
                           x_ms_lease_status="unlocked",
                           x_ms_server_encrypted="true",
                           **{f"x-ms-meta-{key}": value
                              for key, value in MARKERS[name].items()})

    def list_blobs(self, container, query):
        prefix = query.get("prefix", "")
        delimiter = query.get("delimiter", "")
        names = [file.relative_to(container).as_posix()
                 for file in container.rglob("*") if file.is_file()]
        names += [name.split("/", 1)[1] for name in MARKERS
                  if name.startswith(container.name + "/")]
        blobs, folders = {}, set()
        for name in sorted(names):
            rest = name[len(prefix):]
            if not name.startswith(prefix):
                continue
            if delimiter and delimiter in rest:
                folders.add(prefix + rest.split(delimiter)[0] + delimiter)
                continue
            file = container / name
            marker = name.endswith("/")
            metadata = "".join(
                f"<{key}>{escape(value)}</{key}>" for key, value in
                MARKERS.get(f"{container.name}/{name}", {}).items())
            modified = http_date(0 if marker else file.stat().st_mtime)
            blobs[name] = (
                f"<Blob><Name>{escape(name)}</Name><Properties>"
                f"<Last-Modified>{modified}</Last-Modified>"
                f"<Etag>{'0' if marker else etag(file).strip(chr(34))}</Etag>"
                f"<Content-Length>{0 if marker else file.stat().st_size}"
                f"</Content-Length>"
                f"<Content-Type>application/octet-stream</Content-Type>"
                f"<BlobType>BlockBlob</BlobType></Properties><Metadata>"
                f"{metadata}</Metadata></Blob>")
        # Small pages, so that tests see a second one.
        there = [n for n in sorted(blobs) if n >= query.get("marker", "")]
        page = there[:PAGE]
        more = there[PAGE] if len(there) > PAGE else ""
        prefixes = [] if query.get("marker") else [
            f"<BlobPrefix><Name>{escape(f)}</Name></BlobPrefix>"
            for f in sorted(folders)]
        text = (f'<?xml version="1.0" encoding="utf-8"?><EnumerationResults '
                f'ServiceEndpoint="http://127.0.0.1/{ACCOUNT}" ContainerName='
                f'"{container.name}"><Blobs>'
                f"{''.join(blobs[name] for name in page)}"
                f'{"".join(prefixes)}</Blobs><NextMarker>{escape(more)}'
                f"</NextMarker></EnumerationResults>")
        self.answer(200, text.encode(), Content_Type="application/xml")

    def batch(self, body):
        boundary = "answers"
        text = ""
        for at, match in enumerate(
                re.finditer(rb"DELETE (\S+) HTTP/1.1", body)):
            path = urllib.parse.urlsplit(match.group(1).decode()).path
            parts = urllib.parse.unquote(path).strip("/").split("/", 2)
            name = "/".join(parts[-2:]) + "/" * path.endswith("/")
            there = name in MARKERS or (
                not path.endswith("/") and (FOLDER / name).is_file())
            MARKERS.pop(name, None)
            if not path.endswith("/"):
                remove(FOLDER / name)
            error = ('<?xml version="1.0" encoding="utf-8"?><Error><Code>'
                     "BlobNotFound</Code><Message>gone</Message></Error>")
            text += (f"--{boundary}\r\nContent-Type: application/http\r\n"
                     f"Content-ID: {at}\r\n\r\nHTTP/1.1 "
                     f"{'202 Accepted' if there else '404 Not Found'}\r\n"
                     f"x-ms-request-id: 1\r\nx-ms-version: 2021-12-02\r\n")
            text += ("\r\n" if there else
                     f"x-ms-error-code: BlobNotFound\r\n"
                     f"Content-Type: application/xml\r\n"
                     f"Content-Length: {len(error)}\r\n\r\n{error}\r\n")
        text += f"--{boundary}--"
        self.answer(202, text.encode(),
                    Content_Type=f"multipart/mixed; boundary={boundary}")

    def serve_blob(self, file, query, body):
        if self.command == "PUT":
            return self.put(file, query, body)
        if not file.is_file():
            return self.answer(404, error="BlobNotFound")
        if self.command == "DELETE":
            remove(file)
            return self.answer(202)
        if query.get("comp") == "blocklist":
            return self.answer(
                200, b'<?xml version="1.0" encoding="utf-8"?><BlockList>'
                b"<CommittedBlocks/></BlockList>",
                Content_Type="application/xml")
        wanted = self.headers.get("if-match", etag(file))
        if wanted not in ("*", etag(file)):
            return self.answer(412, error="ConditionNotMet")
        bytes_of = file.read_bytes()
        headers = dict(ETag=etag(file), x_ms_blob_type="BlockBlob",
                       x_ms_server_encrypted="true",
                       x_ms_copy_id="1", x_ms_copy_status="success",
                       Last_Modified=http_date(file.stat().st_mtime),
                       x_ms_creation_time=http_date(0),
                       x_ms_lease_status="unlocked",
                       x_ms_lease_state="available",
                       Accept_Ranges="bytes",
                       Content_Type="application/octet-stream")
        span = self.headers.get("x-ms-range") or self.headers.get("range")
        if self.command == "HEAD" or not span:
            return self.answer(200, bytes_of,
                               Content_Length=str(len(bytes_of)), **headers)
        first, last = re.fullmatch(r"bytes=(\d+)-(\d*)", span).groups()
        first = int(first)
        last = min(int(last) if last else len(bytes_of), len(bytes_of) - 1)
        if first >= len(bytes_of):
            return self.answer(416, error="InvalidRange")
        return self.answer(
            206, bytes_of[first:last + 1],
            Content_Range=f"bytes {first}-{last}/{len(bytes_of)}", **headers)

    def put(self, file, query, body):
        key = str(file)
        if query.get("comp") == "lease":
            return self.lease(file)
        if query.get("comp") == "block":
            BLOCKS.setdefault(key, {})[query["blockid"]] = body
            return self.answer(201, x_ms_request_server_encrypted="true")
        code = 201
        if query.get("comp") == "blocklist":
            ids = [one.text for one in xml.fromstring(body)]
            blocks = BLOCKS.get(key, {})
            if any(one not in blocks for one in ids):
                return self.answer(400, error="InvalidBlockList")
            body = b"".join(blocks[one] for one in ids)
        elif "x-ms-copy-source" in self.headers:
            path = urllib.parse.urlsplit(self.headers["x-ms-copy-source"]).path
            source = urllib.parse.unquote(path).strip("/").split("/", 1)[1]
            if not (FOLDER / source).is_file():
                return self.answer(404, error="BlobNotFound")
            body = (FOLDER / source).read_bytes()
            code = 202
        else:
            BLOCKS.pop(key, None)
        file.parent.mkdir(parents=True, exist_ok=True)
        part = FOLDER / f".part-{threading.get_ident()}"
        part.write_bytes(body)
        os.replace(part, file)
        return self.answer(code, ETag=etag(file), x_ms_copy_id="1",
                           x_ms_copy_status="success",
                           x_ms_request_server_encrypted="true",
                           Last_Modified=http_date(file.stat().st_mtime))

    def lease(self, file):
        if not file.is_file():
            return self.answer(404, error="BlobNotFound")
        codes = {"acquire": 201, "break": 202}
        lease = (self.headers.get("x-ms-proposed-lease-id") or
                 self.headers.get("x-ms-lease-id", ""))
        return self.answer(
            codes.get(self.headers["x-ms-lease-action"], 200), ETag=etag(file),
            Last_Modified=http_date(file.stat().st_mtime),
            x_ms_lease_id=lease)


class Server(http.server.ThreadingHTTPServer):
    request_queue_size = 128


Server(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
