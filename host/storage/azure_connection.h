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

// What is wrong with it, which never quotes it, as a wrong separator makes a
// key a piece of another part; "": nothing.
inline std::string WrongInAzureConnection(const AzureConnection& connection) {
  const auto only = [](const std::string& text, const char* others) {
    return std::all_of(text.begin(), text.end(), [others](char c) {
      return std::isalnum(static_cast<unsigned char>(c)) != 0 ||
             std::string(others).find(c) != std::string::npos;
    });
  };
  if (connection.emulator) {
    return "UseDevelopmentStorage isn't known: write AccountName, AccountKey "
           "and BlobEndpoint";
  }
  if (!only(connection.account, "")) {
    return "AccountName has other characters than letters and digits: parts "
           "are separated by ;";
  }
  const std::string& key = connection.key;
  if (!only(key, "+/=") || key.size() % 4 != 0) {
    return "AccountKey isn't base64: is all of it there?";
  }
  if (!only(connection.suffix, ".-")) {
    return "EndpointSuffix isn't a host's name: parts are separated by ;";
  }
  const std::string& url = connection.blob_endpoint;
  const size_t scheme = url.find("://");
  if (url.empty()) return "";
  if (scheme == std::string::npos ||
      (url.substr(0, scheme) != "http" && url.substr(0, scheme) != "https")) {
    return "BlobEndpoint begins with neither http:// nor https://";
  }
  const std::string rest = url.substr(scheme + 3);
  const std::string host = rest.substr(0, rest.find('/'));
  const size_t colon = std::min(host.find(':'), host.size());
  const std::string port = host.substr(colon);
  if (!only(host.substr(0, colon), ".-") || colon == 0 || port.size() > 6 ||
      !std::all_of(port.begin() + (port.empty() ? 0 : 1), port.end(),
                   [](char c) { return c >= '0' && c <= '9'; }) ||
      (!port.empty() &&
       (port.size() == 1 || std::stoi(port.substr(1)) > 65535)) ||
      !only(rest.substr(host.size()), "/")) {
    return "BlobEndpoint isn't https://HOST or, of an emulator, "
           "http://HOST:PORT/ACCOUNT";
  }
  return "";
}

}  // namespace capstan

#endif  // CAPSTAN_HOST_STORAGE_AZURE_CONNECTION_H_
