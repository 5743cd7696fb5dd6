// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_HOST_STORAGE_AZURE_CONNECTION_H_
#define CAPSTAN_HOST_STORAGE_AZURE_CONNECTION_H_

#include <algorithm>
#include <cctype>
#include <map>
#include <string>

namespace capstan {

// What Azure's AZURE_STORAGE_CONNECTION_STRING says.
struct AzureConnection {
  std::string account;
  std::string key;  // or
  std::string signature;
  // "https://HOST", or "http://HOST:PORT/ACCOUNT" of an emulator; else
  // https://ACCOUNT.blob.SUFFIX.
  std::string blob_endpoint;
  std::string suffix;
  std::string protocol;   // unless an endpoint says it
  bool emulator = false;  // UseDevelopmentStorage
};

// Of NAME=VALUE;.., whose names are in any case, and whose values may have "=".
// A string for a signature may leave the account to the endpoint.
inline AzureConnection ReadAzureConnection(const std::string& text) {
  std::map<std::string, std::string> parts;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(';', begin), text.size());
    const std::string part = text.substr(begin, end - begin);
    const size_t equals = part.find('=');
    if (equals != std::string::npos) {
      std::string name = part.substr(0, equals);
      std::transform(name.begin(), name.end(), name.begin(), [](char c) {
        return static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
      });
      parts[name] = part.substr(equals + 1);
    }
    begin = end + 1;
  }
  AzureConnection connection;
  connection.account = parts["accountname"];
  connection.key = parts["accountkey"];
  connection.signature = parts["sharedaccesssignature"];
  connection.blob_endpoint = parts["blobendpoint"];
  connection.suffix = parts["endpointsuffix"];
  connection.protocol = parts["defaultendpointsprotocol"];
  const std::string emulator = parts["usedevelopmentstorage"];
  connection.emulator = emulator == "true" || emulator == "True";
  std::string& url = connection.blob_endpoint;
  while (!url.empty() && url.back() == '/') url.pop_back();
  if (connection.account.empty() && !url.empty()) {
    const size_t scheme = url.find("://");
    const size_t host = scheme == std::string::npos ? 0 : scheme + 3;
    const size_t slash = url.find('/', host);
    connection.account =
        slash != std::string::npos
            ? url.substr(slash + 1)
            : url.substr(host,
                         std::min(url.find('.', host), url.size()) - host);
  }
  return connection;
}

}  // namespace capstan

#endif  // CAPSTAN_HOST_STORAGE_AZURE_CONNECTION_H_
