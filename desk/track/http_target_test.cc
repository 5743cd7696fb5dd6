// SPDX-License-Identifier: Apache-2.0
//
// https: whose certificates are trusted.
#include "desk/track/http_target.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <cstdio>
#include <memory>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/scratch_folder.h"

namespace capstan::track {
namespace {

using ::testing::HasSubstr;

// Writes a key and a certificate for 127.0.0.1 that it has signed.
void MakeCertificate(const std::string& cert_path,
                     const std::string& key_path) {
  EVP_PKEY* const key = EVP_EC_gen("P-256");
  X509* const cert = X509_new();
  X509_set_version(cert, 2);  // X.509 version 3
  ASN1_INTEGER_set(X509_get_serialNumber(cert), 1);
  X509_gmtime_adj(X509_getm_notBefore(cert), -3600);
  X509_gmtime_adj(X509_getm_notAfter(cert), 3600);
  X509_set_pubkey(cert, key);
  X509_NAME* const name = X509_get_subject_name(cert);
  X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>("a test"),
                             -1, -1, 0);
  X509_set_issuer_name(cert, name);
  X509_EXTENSION* const address = X509V3_EXT_conf_nid(
      nullptr, nullptr, NID_subject_alt_name, "IP:127.0.0.1");
  X509_add_ext(cert, address, -1);
  X509_EXTENSION_free(address);
  ASSERT_GT(X509_sign(cert, key, EVP_sha256()), 0);
  FILE* file = std::fopen(cert_path.c_str(), "w");
  PEM_write_X509(file, cert);
  std::fclose(file);
  file = std::fopen(key_path.c_str(), "w");
  PEM_write_PrivateKey(file, key, nullptr, nullptr, 0, nullptr, nullptr);
  std::fclose(file);
  X509_free(cert);
  EVP_PKEY_free(key);
}

class HttpsTest : public ::testing::Test {
 protected:
  HttpsTest() {
    MakeCertificate(cert_, key_);
    server_ = std::make_unique<httplib::SSLServer>(cert_.c_str(), key_.c_str());
    server_->Post("/log", [](const auto& request, auto& response) {
      response.set_content(request.body, "application/json");
    });
    port_ = server_->bind_to_any_port("127.0.0.1");
    thread_ = std::thread([this] { server_->listen_after_bind(); });
    while (!server_->is_running()) std::this_thread::yield();
  }
  ~HttpsTest() override {
    server_->stop();
    thread_.join();
  }

  absl::StatusOr<nlohmann::ordered_json> Post(const HttpOptions& options,
                                              const char* host = "127.0.0.1") {
    const auto target = HttpTarget::Make(
        absl::StrCat("https://", host, ":", port_), "--url", options);
    EXPECT_TRUE(target.ok()) << target.status();
    return (*target)->Call("POST", "/log", {{"loss", 2.5}});
  }

  const ScratchFolder folder_;
  const std::string cert_ = folder_.path() + "/cert.pem";
  const std::string key_ = folder_.path() + "/key.pem";
  std::unique_ptr<httplib::SSLServer> server_;
  int port_ = 0;
  std::thread thread_;
};

TEST_F(HttpsTest, ItsOwnCertificateIsTrustedIfItIsNamed) {
  HttpOptions options;
  options.ca_file = cert_;
  const auto answer = Post(options);
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(*answer, nlohmann::ordered_json({{"loss", 2.5}}));
}

TEST_F(HttpsTest, WhomNobodyVouchesForIsSentNothing) {
  HttpOptions options;
  const auto refused = Post(options);
  EXPECT_TRUE(absl::IsFailedPrecondition(refused.status()));
  EXPECT_THAT(std::string(refused.status().message()),
              HasSubstr("its certificate can't be trusted"));
  // Another one's, or one for another name.
  options.ca_file = folder_.path() + "/other.pem";
  MakeCertificate(options.ca_file, folder_.path() + "/other_key.pem");
  EXPECT_THAT(std::string(Post(options).status().message()),
              HasSubstr("can't be trusted by " + options.ca_file));
  options.ca_file = cert_;
  EXPECT_TRUE(absl::IsFailedPrecondition(Post(options, "localhost").status()));
  options.ca_file = "/nowhere.pem";
  EXPECT_FALSE(Post(options).ok());
  options.ca_file.clear();
  options.checks_cert = false;
  EXPECT_TRUE(Post(options).ok());
}

}  // namespace
}  // namespace capstan::track
