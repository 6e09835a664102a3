"""Unpacks a part of a source distribution of the Python index, without building it as pip would.

python3 sdist.py PACKAGE VERSION FOLDER PART: everything below PART comes into FOLDER.
"""

import hashlib
import io
import os
import re
import sys
import tarfile
import urllib.parse
import urllib.request

package, version, folder, part = sys.argv[1:]
index = os.environ.get("PIP_INDEX_URL", "https://pypi.org/simple").rstrip("/")
page_url = f"{index}/{package}/"
page = urllib.request.urlopen(page_url).read().decode()
name = re.escape(f"{package.replace('-', '_')}-{version}.tar.gz")
link = re.search(rf'href="([^"#]*/{name})#sha256=([0-9a-f]+)', page)
if link is None:
    sys.exit(f"{page_url} has no source distribution of version {version}")
data = urllib.request.urlopen(urllib.parse.urljoin(page_url, link[1])).read()
if hashlib.sha256(data).hexdigest() != link[2]:
    sys.exit(f"{link[1]} is damaged: its SHA-256 is not that of the index")
with tarfile.open(fileobj=io.BytesIO(data)) as archive:
    for member in archive:
        # The first folder is named after package and version.
        inside = member.name.partition("/")[2]
        if member.isfile() and inside.startswith(part + "/") and ".." not in inside.split("/"):
            target = os.path.join(folder, inside[len(part) + 1 :])
            os.makedirs(os.path.dirname(target), exist_ok=True)
            with open(target, "wb") as file:
                file.write(archive.extractfile(member).read())
