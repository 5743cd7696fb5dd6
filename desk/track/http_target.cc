// SPDX-License-Identifier: Apache-2.0
#include "desk/track/http_target.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/clock.h"
#include "base/json.h"
#include "trainer/metrics/console.h"

namespace capstan::track {
namespace {

constexpr int kConnectSeconds = 5;
constexpr double kRequestSeconds = 15.0;
constexpr size_t kMostAnswerBytes = size_t{64} << 20;
constexpr size_t kMostShownBytes = 300;

// What a server says of its own: MLflow's and Kubernetes' "message", Trackio's
// "error", FastAPI's "detail", or the body's beginning.
std::string ServersWords(const nlohmann::ordered_json& answer,
                         const std::string& body) {
  std::string words = body;
  if (answer.is_object()) {
    for (const char* const key : {"message", "error", "detail"}) {
      const auto found = answer.find(key);
      if (found == answer.end() || !found->is_string()) continue;
      words = found->get<std::string>();
      break;
    }
  }
  words = PrintableText(words.substr(0, words.find('\n')));
  return words.size() <= kMostShownBytes ? words
                                         : words.substr(0, kMostShownBytes);
}

std::string ErrorText(httplib::Error error) {
  switch (error) {
    case httplib::Error::Connection:
      return "no connection";
    case httplib::Error::Read:
      return "the answer didn't come";
    case httplib::Error::Write:
      return "the connection was lost";
    case httplib::Error::SSLConnection:
      return "it doesn't speak https, or its CA's file can't be read";
    default:
      return httplib::to_string(error);
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<HttpTarget>> HttpTarget::Make(
    const std::string& url, const std::string& where,
    const HttpOptions& options) {
  absl::string_view rest = url;
  const bool https = absl::StartsWith(rest, "https://");
  if (!absl::ConsumePrefix(&rest, https ? "https://" : "http://")) {
    return absl::InvalidArgumentError(
        absl::StrCat(where, ": must begin with http:// or https://"));
  }
  std::unique_ptr<HttpTarget> target(new HttpTarget);
  target->options_ = options;
  const std::pair<absl::string_view, absl::string_view> at_query =
      absl::StrSplit(rest, absl::MaxSplits('?', 1));
  target->query_ = std::string(at_query.second);
  rest = at_query.first;
  absl::string_view authority = rest.substr(0, rest.find('/'));
  target->path_ =
      std::string(absl::StripSuffix(rest.substr(authority.size()), "/"));
  const size_t at = authority.rfind('@');
  if (at != absl::string_view::npos) {
    target->SetHeader(
        "Authorization",
        absl::StrCat("Basic ", absl::Base64Escape(authority.substr(0, at))));
    authority.remove_prefix(at + 1);
  }
  if (authority.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(where, ": has no host: http://HOST:PORT"));
  }
  target->origin_ = absl::StrCat(https ? "https://" : "http://", authority);
  target->shown_ =
      absl::StrCat(target->origin_, options.hides_path ? "" : target->path_);
  target->client_ = std::make_unique<httplib::Client>(target->origin_);
  httplib::Client& client = *target->client_;
  if (!client.is_valid()) {
    return absl::InvalidArgumentError(
        absl::StrCat(where, ": ", target->shown_, " isn't an address"));
  }
  client.set_connection_timeout(kConnectSeconds);
  client.set_read_timeout(static_cast<time_t>(kRequestSeconds));
  client.set_write_timeout(static_cast<time_t>(kRequestSeconds));
  client.set_keep_alive(true);
  if (https) {
    if (!options.ca_file.empty()) {
      client.set_ca_cert_path(options.ca_file.c_str());
    }
    client.enable_server_certificate_verification(options.checks_cert);
  }
  return target;
}

absl::StatusOr<nlohmann::ordered_json> HttpTarget::Call(
    const std::string& method, const std::string& path,
    const nlohmann::ordered_json& body) {
  httplib::Request request;
  request.method = method;
  request.path = absl::StrCat(path_, path);
  if (request.path.empty()) request.path = "/";
  if (!query_.empty()) {
    absl::StrAppend(&request.path,
                    absl::StrContains(request.path, '?') ? "&" : "?", query_);
  }
  request.headers = options_.headers;
  if (!body.is_null()) {
    request.body = JsonText(body);
    request.headers.emplace("Content-Type", "application/json");
  }
  std::string text;
  const double begin = MonotonicSeconds();
  request.content_receiver = [&](const char* data, size_t size, uint64_t,
                                 uint64_t) {
    text.append(data, size);
    return text.size() <= kMostAnswerBytes &&
           MonotonicSeconds() - begin <= kRequestSeconds;
  };
  const httplib::Result result = client_->send(request);
  if (!result) {
    if (result.error() == httplib::Error::SSLServerVerification ||
        result.error() == httplib::Error::SSLLoadingCerts) {
      return absl::FailedPreconditionError(absl::StrCat(
          shown_, ": its certificate can't be trusted",
          options_.ca_file.empty() ? "" : " by " + options_.ca_file));
    }
    return absl::UnavailableError(
        absl::StrCat(shown_, ": ", ErrorText(result.error())));
  }
  const int status = result->status;
  nlohmann::ordered_json answer;
  if (!text.empty()) answer = ParseJson<nlohmann::ordered_json>(text);
  if (status >= 200 && status < 300) return answer;
  const std::string message =
      absl::StrCat(shown_, path.substr(0, path.find('?')), " answered ", status,
                   ": ", ServersWords(answer, text));
  if (status == 408 || status == 429 || status >= 500) {
    return absl::UnavailableError(message);
  }
  return status == 404 ? absl::NotFoundError(message)
                       : absl::FailedPreconditionError(message);
}

void HttpTarget::SetHeader(const std::string& name, const std::string& value) {
  options_.headers.erase(name);
  options_.headers.emplace(name, value);
}

std::string UrlEscaped(const std::string& text) {
  std::string escaped;
  for (const char c : text) {
    if (absl::ascii_isalnum(static_cast<unsigned char>(c)) ||
        absl::StrContains("-._~", c)) {
      escaped += c;
    } else {
      absl::StrAppend(&escaped, "%", absl::BytesToHexString({&c, size_t{1}}));
    }
  }
  return escaped;
}

std::string UrlUnescaped(absl::string_view text) {
  std::string plain;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && i + 2 < text.size() &&
        absl::ascii_isxdigit(static_cast<unsigned char>(text[i + 1])) &&
        absl::ascii_isxdigit(static_cast<unsigned char>(text[i + 2]))) {
      absl::StrAppend(&plain, absl::HexStringToBytes(text.substr(i + 1, 2)));
      i += 2;
    } else {
      plain += text[i];
    }
  }
  return plain;
}

}  // namespace capstan::track
