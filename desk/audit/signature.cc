// SPDX-License-Identifier: Apache-2.0
#include "desk/audit/signature.h"

#include <openssl/evp.h>
#include <openssl/pem.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/error_code.h"
#include "base/files.h"
#include "base/json.h"
#include "base/status.h"

namespace capstan {
namespace {

using Json = nlohmann::ordered_json;
using Key = std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)>;
using Context = std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)>;

constexpr int64_t kMostKeyBytes = 1 << 16;

// So that it is no signature of anything else.
std::string MessageOf(const SignedReceipts& receipts) {
  return absl::StrCat("capstan receipts 1\nstep ", receipts.step, "\nchain ",
                      receipts.chain, "\nseal ", receipts.seal, "\n");
}

absl::StatusOr<Key> ReadKey(const std::string& path, bool secret) {
  CAPSTAN_ASSIGN_OR_RETURN(const std::string text,
                           ReadWholeFile(path, kMostKeyBytes));
  const std::unique_ptr<BIO, decltype(&BIO_free)> memory(
      BIO_new_mem_buf(text.data(), static_cast<int>(text.size())), &BIO_free);
  // A key with a passphrase is an error, and not a question on the terminal.
  const auto no_passphrase = [](char*, int, int, void*) { return -1; };
  Key key(secret ? PEM_read_bio_PrivateKey(memory.get(), nullptr, no_passphrase,
                                           nullptr)
                 : PEM_read_bio_PUBKEY(memory.get(), nullptr, no_passphrase,
                                       nullptr),
          &EVP_PKEY_free);
  if (key != nullptr) return key;
  return WithCode(
      absl::InvalidArgumentError(
          secret ? absl::StrCat(
                       path,
                       " has no private key in PEM without a passphrase: "
                       "`openssl genpkey -algorithm ed25519 -out key.pem` "
                       "makes one")
                 : absl::StrCat(
                       path,
                       " has no public key in PEM: `openssl pkey -in key.pem "
                       "-pubout -out public.pem` takes it from the private "
                       "one")),
      "receipts/signature");
}

// Ed25519 has a digest of its own.
const EVP_MD* DigestFor(const Key& key) {
  return EVP_PKEY_id(key.get()) == EVP_PKEY_ED25519 ? nullptr : EVP_sha256();
}

const unsigned char* Bytes(absl::string_view text) {
  return reinterpret_cast<const unsigned char*>(text.data());
}

absl::Status SignatureError(const std::string& text) {
  return WithCode(absl::DataLossError(text), "receipts/signature");
}

// What the file at `path` says, if `key` has signed that.
absl::StatusOr<SignedReceipts> Verified(const std::string& path, const Key& key,
                                        const std::string& key_path) {
  CAPSTAN_ASSIGN_OR_RETURN(const std::string text,
                           ReadWholeFile(path, kMostKeyBytes));
  const Json json = ParseJson<Json>(text);
  SignedReceipts receipts;
  std::string signature;
  for (const auto& [name, value] :
       {std::pair<const char*, std::string*>{"chain", &receipts.chain},
        {"seal", &receipts.seal},
        {"signature", &signature}}) {
    if (!json.is_object() || !json.contains(name) || !json[name].is_string()) {
      return SignatureError(
          absl::StrCat(path, " is no signature: it has no \"", name, "\""));
    }
    *value = json[name].get<std::string>();
  }
  if (json.contains("step") && json["step"].is_number_integer()) {
    receipts.step = json["step"].get<int64_t>();
  }
  std::string bytes;
  const std::string message = MessageOf(receipts);
  const Context context(EVP_MD_CTX_new(), &EVP_MD_CTX_free);
  if (absl::Base64Unescape(signature, &bytes) &&
      EVP_DigestVerifyInit(context.get(), nullptr, DigestFor(key), nullptr,
                           key.get()) == 1 &&
      EVP_DigestVerify(context.get(), Bytes(bytes), bytes.size(),
                       Bytes(message), message.size()) == 1) {
    return receipts;
  }
  return SignatureError(absl::StrCat(
      path, " isn't the signature of what it says by the key ", key_path));
}

}  // namespace

absl::Status Sign(const SignedReceipts& receipts, const std::string& key_path,
                  const std::string& path) {
  CAPSTAN_ASSIGN_OR_RETURN(const Key key, ReadKey(key_path, /*secret=*/true));
  const Context context(EVP_MD_CTX_new(), &EVP_MD_CTX_free);
  const std::string message = MessageOf(receipts);
  size_t bytes = 0;
  std::string signature;
  bool ok = EVP_DigestSignInit(context.get(), nullptr, DigestFor(key), nullptr,
                               key.get()) == 1 &&
            EVP_DigestSign(context.get(), nullptr, &bytes, Bytes(message),
                           message.size()) == 1;
  if (ok) {
    signature.resize(bytes);
    ok = EVP_DigestSign(context.get(),
                        reinterpret_cast<unsigned char*>(&signature[0]), &bytes,
                        Bytes(message), message.size()) == 1;
    signature.resize(bytes);
  }
  if (!ok) {
    return absl::InvalidArgumentError(absl::StrCat(
        key_path, ": a key of this kind can't sign: take Ed25519, EC or RSA"));
  }
  const Json json = {{"step", receipts.step},
                     {"chain", receipts.chain},
                     {"seal", receipts.seal},
                     {"signature", absl::Base64Escape(signature)}};
  return ReplaceFile(path, JsonText(json, 1) + "\n");
}

absl::StatusOr<SignedReceipts> ReadSignature(const std::string& path,
                                             const std::string& key_path) {
  CAPSTAN_ASSIGN_OR_RETURN(const Key key, ReadKey(key_path, /*secret=*/false));
  return Verified(path, key, key_path);
}

absl::Status CheckMaySign(const std::string& key_path,
                          const std::string& path) {
  CAPSTAN_ASSIGN_OR_RETURN(const Key key, ReadKey(key_path, /*secret=*/true));
  if (!PathExists(path) || Verified(path, key, key_path).ok()) {
    return absl::OkStatus();
  }
  return WithCode(absl::FailedPreconditionError(absl::StrCat(
                      path, " is there already, and isn't a signature by ",
                      key_path, ": move it away before you sign")),
                  "receipts/signature");
}

}  // namespace capstan
