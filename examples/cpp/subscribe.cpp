// Prints every record of a running service: camera, sequence number, tensors, and what is missing before it.
//
//   subscribe [ENDPOINT] [CAMERA]

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <msgpack.hpp>
#include <zmq.hpp>
#include <zmq_addon.hpp>

namespace {

constexpr int kSchema = 1;

// Only the keys that this program uses; all others are ignored.
struct TensorHeader {
  std::string name, dtype;
  std::vector<size_t> shape;
  size_t nbytes = 0;
  MSGPACK_DEFINE_MAP(name, dtype, shape, nbytes);
};

// What poses and depths mean; nil in records without them.
struct Geometry {
  std::string unit;
  MSGPACK_DEFINE_MAP(unit);
};

struct Header {
  int schema = 0;
  std::string camera, instance;
  uint64_t stream_epoch = 0, seq = 0, source_seq = 0;
  std::vector<int> source_size;
  std::vector<std::string> flags;
  std::vector<TensorHeader> tensors;
  std::optional<Geometry> geometry;
  MSGPACK_DEFINE_MAP(schema, camera, instance, stream_epoch, seq, source_seq, source_size, flags, tensors, geometry);
};

float from_bits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

float half_to_float(uint16_t half) {
  const uint32_t sign = uint32_t(half & 0x8000) << 16, exponent = half >> 10 & 0x1f, fraction = half & 0x3ff;
  if (exponent == 0x1f) return from_bits(sign | 0x7f800000 | fraction << 13);  // infinity, NaN
  if (exponent == 0) return (sign ? -1.0f : 1.0f) * float(fraction) * 0x1p-24f;  // zero, subnormal
  return from_bits(sign | (exponent + 112) << 23 | fraction << 13);
}

// The numbers of a tensor as floats. Messages are little-endian; so is this program's host.
std::vector<float> to_floats(const TensorHeader& tensor, const zmq::message_t& part) {
  std::vector<float> values;
  if (tensor.dtype == "<f4") {
    values.resize(part.size() / 4);
    if (!values.empty()) std::memcpy(values.data(), part.data(), values.size() * 4);
  } else if (tensor.dtype == "<f2" || tensor.dtype == "bf16") {
    const bool is_half = tensor.dtype == "<f2";
    const auto* bytes = part.data<const char>();
    values.reserve(part.size() / 2);
    for (size_t at = 0; at + 2 <= part.size(); at += 2) {
      uint16_t bits;
      std::memcpy(&bits, bytes + at, sizeof bits);  // a part may start at an odd address
      values.push_back(is_half ? half_to_float(bits) : from_bits(uint32_t(bits) << 16));
    }
  }
  return values;
}

void print_gaps(const Header& now, const Header* last) {
  const char* camera = now.camera.c_str();
  int64_t seq = -1, source_seq = -1;  // where a new connection starts counting
  if (!last) return;                  // the first record of a camera: joining late is no gap
  if (now.instance != last->instance) {
    std::printf("%s: restart 1\n", camera);
  } else if (now.stream_epoch != last->stream_epoch) {
    std::printf("%s: reconnect %lld\n", camera, static_cast<long long>(now.stream_epoch - last->stream_epoch));
  } else {
    seq = last->seq, source_seq = last->source_seq;
  }
  const long long lost = int64_t(now.seq) - seq - 1, dropped = int64_t(now.source_seq) - source_seq - 1 - lost;
  if (dropped > 0) std::printf("%s: source_drop %lld\n", camera, dropped);
  if (lost > 0) std::printf("%s: wire_loss %lld\n", camera, lost);
}

// The camera's position: the last column of the pose [3, 4], which is stored by rows; NaN if it is unknown.
void print_pose(const Header& header, const std::vector<zmq::message_t>& parts) {
  for (size_t i = 0; header.geometry && i < header.tensors.size(); ++i) {
    if (header.tensors[i].name != "pose/world_from_camera") continue;
    const auto pose = to_floats(header.tensors[i], parts[i + 2]);
    if (pose.size() != 12) continue;
    std::printf("  camera at %g %g %g (%s)\n", pose[3], pose[7], pose[11], header.geometry->unit.c_str());
  }
}

void print_record(const Header& header, const std::vector<zmq::message_t>& parts) {
  std::string flags;
  for (const auto& flag : header.flags) flags += (flags.empty() ? "" : ",") + flag;
  std::printf("%s %llu %dx%d %s\n", header.camera.c_str(), static_cast<unsigned long long>(header.seq),
              header.source_size.at(0), header.source_size.at(1), flags.empty() ? "-" : flags.c_str());
  for (size_t i = 0; i < header.tensors.size(); ++i) {
    const auto& tensor = header.tensors[i];
    const auto values = to_floats(tensor, parts[i + 2]);
    std::string shape;
    for (size_t length : tensor.shape) shape += (shape.empty() ? "" : ", ") + std::to_string(length);
    std::printf("  %s [%s] first %g\n", tensor.name.c_str(), shape.c_str(), values.empty() ? 0.0f : values.front());
  }
  print_pose(header, parts);
  std::fflush(stdout);
}

// Whether the message has one part of the announced size for each tensor.
bool is_complete(const Header& header, const std::vector<zmq::message_t>& parts) {
  if (parts.size() != header.tensors.size() + 2) return false;
  for (size_t i = 0; i < header.tensors.size(); ++i) {
    if (parts[i + 2].size() != header.tensors[i].nbytes) return false;
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string endpoint = argc > 1 ? argv[1] : "tcp://127.0.0.1:5555";
  const std::string topic = argc > 2 ? std::string("features/") + argv[2] + "/" : "features/";

  zmq::context_t context;
  zmq::socket_t socket(context, zmq::socket_type::sub);
  socket.set(zmq::sockopt::rcvhwm, 8);          // a small queue: a slow program sees recent records
  socket.set(zmq::sockopt::reconnect_ivl, 20);  // lose little when the service restarts
  socket.set(zmq::sockopt::subscribe, topic);
  socket.connect(endpoint);

  std::map<std::string, Header> last;
  for (;;) {
    std::vector<zmq::message_t> parts;
    if (!zmq::recv_multipart(socket, std::back_inserter(parts)) || parts.size() < 2) continue;
    try {
      const auto header = msgpack::unpack(parts[1].data<char>(), parts[1].size())->as<Header>();
      if (header.schema > kSchema) {
        std::fprintf(stderr, "the service sends schema %d, this program reads up to %d\n", header.schema, kSchema);
        return 1;
      }
      if (!is_complete(header, parts)) continue;
      const auto found = last.find(header.camera);
      print_gaps(header, found == last.end() ? nullptr : &found->second);
      print_record(header, parts);
      last[header.camera] = header;
    } catch (const std::exception& error) {
      std::fprintf(stderr, "skipped a message: %s\n", error.what());
    }
  }
}
