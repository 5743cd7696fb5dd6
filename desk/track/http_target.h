// SPDX-License-Identifier: Apache-2.0
//
// A server that JSON is sent to.
#ifndef CAPSTAN_DESK_TRACK_HTTP_TARGET_H_
#define CAPSTAN_DESK_TRACK_HTTP_TARGET_H_

#include <httplib.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace capstan::track {

struct HttpOptions {
  httplib::Headers headers;
  std::string ca_file;  // for https; "": the system's, or SSL_CERT_FILE
  bool checks_cert = true;
  bool hides_path = false;  // it is a secret, as those of webhooks are
};

// One thread. A request takes at most a quarter of a minute.
class HttpTarget {
 public:
  // `url`: http or https, maybe with a user and password, which become a
  // header. `where`: the flag or variable that it comes from, for errors.
  static absl::StatusOr<std::unique_ptr<HttpTarget>> Make(
      const std::string& url, const std::string& where,
      const HttpOptions& options);

  // Sends `body` (null: none) to the path below the URL's, with its query.
  // UNAVAILABLE without an answer, or one that asks to try again (408, 429,
  // 5xx); NOT_FOUND for 404; else, for answers that refuse, FAILED_PRECONDITION
  // with the server's own words. An answer without a body is null, and one that
  // isn't JSON discarded().
  absl::StatusOr<nlohmann::ordered_json> Call(
      const std::string& method, const std::string& path,
      const nlohmann::ordered_json& body);
  void SetHeader(const std::string& name, const std::string& value);

  // Scheme, host, port and path, without what might be secret.
  const std::string& shown() const { return shown_; }

 private:
  HttpTarget() = default;

  std::string origin_;  // "http://host:5000"
  std::string path_;    // "/prefix" or ""
  std::string query_;   // "a=b" or ""
  std::string shown_;
  HttpOptions options_;
  std::unique_ptr<httplib::Client> client_;
};

// For a URL's query: all but letters, digits and -._~ as %20.
std::string UrlEscaped(const std::string& text);
// %20 as the character; what isn't such stays.
std::string UrlUnescaped(absl::string_view text);

}  // namespace capstan::track

#endif  // CAPSTAN_DESK_TRACK_HTTP_TARGET_H_
